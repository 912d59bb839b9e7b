"""Studies of training time and cost: a plan, runs beside a monitor, and their analysis.

    $ dr study plan methodology
    $ dr study run methodology
    $ dr study analyse out/study/methodology

A study is a TOML file (`study_file`). `plan` crosses its factors, or takes a fraction (`design`)
where the budget is short; `running` makes the runs through `runners`; on the machine of the run,
`supervise` starts a `worker` and watches it (`monitor`, `counters`); `analysis`, `costs` and
`report` say what came out. docs/training-studies.md has the details.
"""
