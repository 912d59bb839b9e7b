"""Prints the table of acknowledged cdk-nag findings that docs/compliance.md holds.

    python tools/compliance_table.py --write

A test compares the page with what this prints.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compliance.md"
BEGIN = "<!-- table: tools/compliance_table.py --write -->"
END = "<!-- end of table -->"


def table() -> str:
    """Markdown rows, one for each acknowledgement."""
    from constructs_lib.compliance import ACKNOWLEDGED, AWS_SOLUTIONS, POLICY, WILDCARDS

    rows = ["| rule | packs | on | why it stands |", "|---|---|---|---|"]
    for row in ACKNOWLEDGED:
        where = row.resource + (f", `{row.under}`" if row.under else "")
        where += f", but `{row.but}`" if row.but else ""
        who = " *(this project's stacks only)*" if row.choice else ""
        rows.append(
            f"| {row.rule.partition('[')[0]} | {', '.join(row.packs)} | {where} | "
            f"{row.reason}{who} |"
        )
    rows += [
        f"| IAM5 | {AWS_SOLUTIONS} | {POLICY}, statement `{sid}` | {reason} |"
        for sid, reason in WILDCARDS.items()
    ]
    rows.append(
        f"| IAM5 | {AWS_SOLUTIONS} | {POLICY}, `Custom::CDKBucketDeployment` | "
        "The CDK's own function; it copies from the bootstrap's bucket into the bucket of models. |"
    )
    return "\n".join(rows)


def page(text: str) -> str:
    """`text` with the table between its marks renewed."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(PAGE.read_text()))
    else:
        print(table())
