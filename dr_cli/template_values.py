"""Values that a template asks for beside those that were deployed.

>>> list(differences("Size", {"MiB": 512, "Key": {"Ref": "Key"}}, {"MiB": "1024"}))
[('Size.MiB', 512, '1024')]
"""

import json
from collections.abc import Iterator
from typing import Any


def differences(path: str, expected: Any, actual: Any) -> Iterator[tuple[str, Any, Any]]:
    """Where two values differ; what the template leaves to the deployment is not judged."""
    if isinstance(expected, dict):
        if any(key == "Ref" or key.startswith("Fn::") for key in expected):
            return
        for key, value in expected.items():
            there = actual.get(key) if isinstance(actual, dict) else None
            yield from differences(f"{path}.{key}", value, there)
    elif _comparable(expected) != _comparable(actual):
        yield path, expected, actual


def refers_to(value: Any, logical_id: str) -> bool:
    """Whether a value names a resource of the same template: by Ref or Fn::GetAtt alone."""
    return f'"{logical_id}"' in json.dumps(value)


def shown(value: Any) -> str:
    """A value for a person's eyes."""
    return "missing" if value is None else str(value)


def _comparable(value: Any) -> Any:
    # CloudFormation takes numbers as text, and SageMaker answers 1 as 1.0.
    try:
        return float(value)
    except (TypeError, ValueError):
        return value
