"""The bill of materials of an image: a CycloneDX 1.6 document of what is really in it.

Debian packages are read from the image's package database, Python packages from their metadata,
and the libraries inside wheels from the lists that the wheels bring along (PEP 770). The document
is the same for the same image.

Needs `cyclonedx-python-lib` (requirements/image.txt).
"""

import email
import json
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any, Final

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from tools.image_archive import Archive

SCHEMA: Final = SchemaVersion.V1_6
_DATABASES: Final = ("/var/lib/dpkg/status", "/var/lib/dpkg/status.d/")


def bill_of_materials(archive: Archive, *, name: str, version: str) -> str:
    """The document as JSON, checked against the schema.

    Args:
        archive: the image.
        name: its repository's name.
        version: of the project.

    Raises:
        ValueError: the document does not hold to the schema.
    """
    bom = Bom()
    # Named by the image, so that the same image has the same document.
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, archive.id)
    bom.metadata.timestamp = _time(archive.created)
    bom.metadata.component = Component(
        type=ComponentType.CONTAINER,
        name=name,
        version=version,
        bom_ref=archive.id,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=archive.id.removeprefix("sha256:"))],
        properties=[Property(name="dr:architecture", value=archive.architecture)],
    )
    parts = [*debian_packages(archive), *python_packages(archive)]
    bom.components.update(parts)
    bom.register_dependency(bom.metadata.component, parts)
    text = make_outputter(bom, OutputFormat.JSON, SCHEMA).output_as_string(indent=2)
    fault = JsonStrictValidator(SCHEMA).validate_str(text)
    if fault is not None:
        raise ValueError(f"the bill of materials does not hold to CycloneDX {SCHEMA}: {fault}")
    return text


def debian_packages(archive: Archive) -> Iterator[Component]:
    """One component for each Debian package of the image."""
    release = dict(
        line.split("=", 1)
        for path, text in archive.texts.items()
        if PurePosixPath(path).name == "os-release"
        for line in text.splitlines()
        if "=" in line
    )
    distribution = release.get("ID", "debian").strip('"')
    number = release.get("VERSION_ID", "").strip('"')
    for path, text in sorted(archive.texts.items()):
        if not path.startswith(_DATABASES) or path.endswith(".md5sums"):
            continue
        for block in re.split(r"\n\n+", text):
            fields = dict(re.findall(r"^([A-Za-z-]+): *(.*)$", block, re.MULTILINE))
            if "Package" not in fields or "not-installed" in fields.get("Status", ""):
                continue
            qualifiers = {"arch": fields.get("Architecture", archive.architecture)}
            if number:
                qualifiers["distro"] = f"{distribution}-{number}"
            url = PackageURL(
                "deb", distribution, fields["Package"], fields["Version"], qualifiers=qualifiers
            )
            yield Component(
                type=ComponentType.LIBRARY,
                name=fields["Package"],
                version=fields["Version"],
                purl=url,
                bom_ref=str(url),
            )


def python_packages(archive: Archive) -> Iterator[Component]:
    """One component for each Python package, with the libraries that its wheel says it holds."""
    licences = LicenseFactory()
    for path, text in sorted(archive.texts.items()):
        if not path.endswith(".dist-info/METADATA"):
            continue
        fields = email.message_from_string(text)
        name = re.sub(r"[-_.]+", "-", str(fields["Name"])).lower()
        url = PackageURL("pypi", None, name, str(fields["Version"]))
        expression = fields["License-Expression"]
        folder = str(PurePosixPath(path).parent)
        yield Component(
            type=ComponentType.LIBRARY,
            name=name,
            version=str(fields["Version"]),
            purl=url,
            bom_ref=str(url),
            licenses=[licences.make_from_string(str(expression))] if expression else None,
            components=list(_inside(archive, folder, parent=str(url))),
            properties=[Property(name="dr:path", value=folder)],
        )


def _inside(archive: Archive, folder: str, *, parent: str) -> Iterator[Component]:
    """What the wheel lists, and the shared libraries that auditwheel put beside the package."""
    package = PurePosixPath(folder).name.partition("-")[0]
    beside = f"{PurePosixPath(folder).parent}/{package}.libs/"
    for path in sorted(archive.files):
        if path.startswith(beside) and archive.files[path].program is not None:
            name = PurePosixPath(path).name
            yield Component(type=ComponentType.FILE, name=name, bom_ref=f"{parent}#{name}")
    seen: set[tuple[str, str]] = set()
    for path, text in sorted(archive.texts.items()):
        if not path.startswith(f"{folder}/sboms/") or not path.endswith(".json"):
            continue
        document: dict[str, Any] = json.loads(text)
        for row in document.get("components", []):
            name, version = str(row["name"]), str(row.get("version", ""))
            if (name, version) in seen:
                continue
            seen.add((name, version))
            yield Component(
                type=ComponentType.LIBRARY,
                name=name,
                version=version or None,
                purl=_purl(row.get("purl")),
                bom_ref=f"{parent}#{name}@{version}",
            )


def _purl(text: object) -> PackageURL | None:
    try:
        return PackageURL.from_string(str(text)) if text else None
    except ValueError:
        return None


def _time(text: str) -> datetime:
    found = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", text)
    when = found[1] if found else "1980-01-01T00:00:00"
    return datetime.fromisoformat(when).replace(tzinfo=UTC)
