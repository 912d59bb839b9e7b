"""What runs in the probe's Lambda function; standard library and boto3 only."""
