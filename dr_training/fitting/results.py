"""Names of what a training leaves, for those who read it without TensorFlow."""

from typing import Final

# The folder that is served, beside the report.
PACKAGE: Final = "package"
REPORT: Final = "training.json"
# The trained network for Keras, where it was asked for.
NETWORK: Final = "network.keras"
# In the report: digest of the records' manifest.
RECORDS_SHA256: Final = "records_sha256"
