"""The hosts of a training job: `resourceconfig.json` to `TF_CONFIG`.

    >>> read_hosts('{"current_host": "algo-2", "hosts": ["algo-1", "algo-2"]}').worker
    1

SageMaker lists the names of all hosts to each of them. The first by name is the chief, which alone
writes checkpoints and results. Every host serves one port to the others, 2222 if `DR_TRAINING_PORT`
does not name another; where several hosts are one machine, as in tests, a host's name may bring its
own: `127.0.0.1:40001`.
"""

import json
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dr_training.job.faults import EXIT_ASKED_WRONGLY, JobError

ENV_PORT: Final = "DR_TRAINING_PORT"
_DEFAULT_PORT: Final = 2222
# A host's name may not be known to the others yet when the first one starts.
NAMES_WITHIN_S: Final = 600.0
_ASK_AGAIN_S: Final = 2.0
_HOST: Final = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}))(?::([0-9]{1,5}))?")
_LABEL_CHARACTERS: Final = 63  # RFC 1035, 2.3.4


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The hosts in the order in which they are workers, and which of them this is."""

    addresses: tuple[str, ...]
    worker: int

    @property
    def is_chief(self) -> bool:
        """Whether this host writes checkpoints and results."""
        return self.worker == 0

    def tf_config(self) -> str | None:
        """The value of `TF_CONFIG`; None for one host, which needs none."""
        if len(self.addresses) == 1:
            return None
        return json.dumps(
            {
                "cluster": {"worker": list(self.addresses)},
                "task": {"type": "worker", "index": self.worker},
            }
        )


def read_hosts(text: str, environment: Mapping[str, str] | None = None) -> Hosts:
    """Read `resourceconfig.json`; `environment` may name the port.

    Raises:
        JobError: it does not say which hosts there are, or the port is none.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise _wrong("it is not JSON") from None
    if not isinstance(document, dict):
        raise _wrong("it must hold one JSON object")
    names, here = document.get("hosts"), document.get("current_host")
    if not isinstance(names, list) or not names or not all(isinstance(one, str) for one in names):
        raise _wrong(f"hosts must be a list of names; it is {names!a:.80}")
    if len(set(names)) != len(names):
        raise _wrong(f"hosts names one twice: {', '.join(sorted(names))[:200]!a}")
    if here not in names:
        raise _wrong(f"current_host {here!a:.80} is not one of hosts")
    port = _port((environment or {}).get(ENV_PORT, ""))
    # SageMaker gives them so; every host has to have the same order.
    ordered = sorted(names)
    return Hosts(
        addresses=tuple(_address(name, port) for name in ordered), worker=ordered.index(here)
    )


def wait_for_names(
    addresses: Sequence[str],
    *,
    within_s: float = NAMES_WITHIN_S,
    look_up: Callable[[str], Any] = socket.gethostbyname,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Return when every host's name can be resolved.

    Raises:
        JobError: one cannot within `within_s` seconds.
    """
    # By the clock: a name server that does not answer takes its time, too.
    until = clock() + within_s
    for address in addresses:
        name = address.rpartition(":")[0]
        while True:
            try:
                look_up(name)
                break
            except (OSError, UnicodeError):
                if clock() >= until:
                    raise JobError(
                        f"host {name} has no address after {within_s:g} s; is traffic between the "
                        "job's hosts allowed by its security group?"
                    ) from None
            sleep(_ASK_AGAIN_S)


def _address(name: str, port: int) -> str:
    match = _HOST.fullmatch(name)
    if match is None or not all(
        0 < len(label) <= _LABEL_CHARACTERS for label in match[1].removesuffix(".").split(".")
    ):
        raise _wrong(f"{name!a:.80} is no name of a host")
    host, own = match.groups()
    return f"{host}:{port if own is None else _port(own)}"


def _port(text: str) -> int:
    if not text:
        return _DEFAULT_PORT
    if not re.fullmatch("[0-9]{1,5}", text) or not 1 <= int(text) <= 65_535:
        raise JobError(
            f"{ENV_PORT} must be a port from 1 to 65535; got {text!a:.40}", EXIT_ASKED_WRONGLY
        )
    return int(text)


def _wrong(sentence: str) -> JobError:
    return JobError(f"resourceconfig.json: {sentence}", EXIT_ASKED_WRONGLY)
