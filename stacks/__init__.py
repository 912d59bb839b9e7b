"""One stack per row of the deployment matrix, and the stack that they share."""
