"""The function that deletes stacks whose time is up; runs in AWS Lambda."""
