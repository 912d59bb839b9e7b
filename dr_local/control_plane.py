"""The control plane: a moto server with our patches, on the loopback interface only.

    python -m dr_local.control_plane --port 4566

CloudFormation, S3, IAM, ECR, SSM, STS, SageMaker's control calls and CloudWatch, as far as moto
has them. State lives in this process's memory and goes with it. Clients use
`http://localhost:PORT` rather than 127.0.0.1: the CDK command would otherwise put the bucket's
name into the path where moto does not look for it.
"""

import argparse
import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from dr_local.parent_watch import exit_with_parent

HOST = "127.0.0.1"


def main(argv: list[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; exits 3 with one sentence when the port is taken."""
    parser = argparse.ArgumentParser(prog="python -m dr_local.control_plane", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--change-log", type=Path, help="file that grows with each change")
    parser.add_argument("--parent-pid", type=int, help="stop when this process has gone")
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    if arguments.parent_pid:
        exit_with_parent(arguments.parent_pid)
    serve(port=arguments.port, change_log=arguments.change_log)


def serve(*, port: int, change_log: Path | None = None) -> None:
    """Run the patched moto server in this thread."""
    # moto reads it to build URLs of itself.
    os.environ["MOTO_PORT"] = str(port)
    # One line per request helps nobody, and object keys need not be in a log.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    from dr_local.moto_patches import apply_patches

    apply_patches(change_log=change_log)
    try:
        server = make_server(
            HOST,
            port,
            DomainDispatcherApplication(create_backend_app),
            threaded=True,
            request_handler=MotoRequestHandler,
        )
    except (OSError, SystemExit):
        print(f"port {port} on {HOST} is already in use", file=sys.stderr)
        raise SystemExit(3) from None
    server.serve_forever()


def _stop(_signal: int, _frame: FrameType | None) -> None:
    # Nothing to save: an orderly interpreter exit with open keep-alive threads takes seconds.
    os._exit(0)


if __name__ == "__main__":
    main()
