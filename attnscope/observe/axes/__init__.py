"""Names of axes: `from_other_sizes`, of code that can run again, as `inspect` does; `from_source`, and
`symbols` from call to call, of a program's calls, as `trace` does.
"""
