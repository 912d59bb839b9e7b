"""Whatever a row is made of, it is either refused in words or deployable as it stands."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from constructs_lib import ValidationError, limits
from stacks.matrix import MATRIX, MODEL_PACKAGES, Arch, Deployment, Mode, select, staged

sizes = st.one_of(st.none(), st.integers(-1, 8192), st.sampled_from((1024, 2048, 6144)))
instances = st.one_of(
    st.none(), st.text(max_size=12), st.sampled_from(sorted(limits.INSTANCE_TYPES))
)
stages = st.one_of(st.none(), st.from_regex(r"\A[a-z][a-z0-9]{0,15}\Z"))
STACK_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,127}")


@settings(deadline=None)
@given(
    mode=st.sampled_from(Mode),
    model=st.sampled_from((*MODEL_PACKAGES, "resnet")),
    architecture=st.sampled_from(Arch),
    memory_mib=sizes,
    instance_type=instances,
    max_concurrency=st.integers(-1, 300),
)
def test_a_row_is_refused_or_valid(
    mode: Mode,
    model: str,
    architecture: Arch,
    memory_mib: int | None,
    instance_type: str | None,
    max_concurrency: int,
) -> None:
    try:
        row = Deployment(
            mode=mode,
            model=model,
            architecture=architecture,
            memory_mib=memory_mib,
            instance_type=instance_type,
            max_concurrency=max_concurrency,
        )
    except ValidationError:
        return
    assert (row.memory_mib is None) != (row.instance_type is None)
    if row.mode is Mode.LAMBDA:
        assert row.memory_mib is not None
        assert limits.LAMBDA_MEMORY_MIB[0] <= row.memory_mib <= limits.LAMBDA_MEMORY_MIB[1]
    elif row.instance_type is None:
        assert row.memory_mib in limits.SERVERLESS_MEMORY_SIZES_MIB
        assert row.architecture == Arch.AMD64
        assert 1 <= row.max_concurrency <= limits.SERVERLESS_MAX_CONCURRENCY
    else:
        assert limits.INSTANCE_TYPES[row.instance_type].architecture == row.architecture
    assert STACK_NAME.fullmatch(row.stack_id)
    assert re.fullmatch(limits.ENDPOINT_NAME_PATTERN, row.stack_id)


@settings(deadline=None)
@given(row=st.sampled_from(MATRIX), other=st.sampled_from(MATRIX), one=stages, two=stages)
def test_two_stages_never_share_a_stack(
    row: Deployment, other: Deployment, one: str | None, two: str | None
) -> None:
    if "shared" in (one, two) or set(Mode) & {one, two}:
        return
    same = (row, one) == (other, two)
    assert (row.stack_id_in(one) == other.stack_id_in(two)) is same
    assert staged("shared", one) != row.stack_id_in(two)


@settings(deadline=None)
@given(
    models=st.sets(st.sampled_from(tuple(MODEL_PACKAGES)), min_size=1),
    modes=st.sets(st.sampled_from([mode.value for mode in Mode]), min_size=1),
)
def test_a_selection_is_the_rows_that_match_in_order(models: set[str], modes: set[str]) -> None:
    rows = select(models=models, modes=modes)
    assert list(rows) == [row for row in MATRIX if row.model in models and row.mode in modes]
