"""What a deployment costs and how long a patient waits: scenarios, records, statistics, report.

Nothing heavy is imported here; take what is needed from the modules:

    >>> from dr_experiments.pricing import PriceTable, serverless_cost
    >>> from dr_experiments.statistics import summarise
"""
