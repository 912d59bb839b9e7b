"""The function that copies an image into a repository of one's own; runs in AWS Lambda."""
