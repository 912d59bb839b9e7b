"""From a folder of fundus photographs to records that training reads.

    >>> reading = read("aptos", Path("aptos2019"))
    >>> reading.table.grades()
    (1805, 370, 999, 193, 295)

`readers` finds the photographs and labels of a data set and makes one `table`; `duplicates`
finds byte-identical files; `splits` divides patients, not photographs; `preparation` runs the
service's own preprocessing and writes `records`; `pipeline` reads them back in batches.

Nothing here needs TensorFlow.
"""
