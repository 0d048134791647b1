"""How many cases of the torture suite there were, shown where pytest shows its summary."""

from __future__ import annotations

from collections import Counter, defaultdict

COUNTS = "torture"
"""What a test's cases are called among the properties that it reports."""


def print_counts(terminalreporter):
    """Print how many cases there were, by group and by status. What xdist's workers report is counted too."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    faults: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) != "call":
                continue
            for name, value in report.user_properties:
                if name == COUNTS:
                    group, by_status, n_fault = value
                    counts[group].update(by_status)
                    faults[group] += n_fault
    if not counts:
        return
    statuses = sorted({status for each in counts.values() for status in each}, key=int)
    terminalreporter.section("torture: cases by exit status")
    heading = f"{'':20}{'cases':>8}" + "".join(f"{status:>7}" for status in statuses) + f"{'faults':>9}"
    terminalreporter.write_line(heading)
    total: Counter[str] = sum(counts.values(), Counter())
    for group, by_status in [*sorted(counts.items()), ("all", total)]:
        n_fault = sum(faults.values()) if group == "all" else faults[group]
        numbers = "".join(f"{by_status[status]:>7}" for status in statuses)
        terminalreporter.write_line(f"{group:20}{by_status.total():>8}{numbers}{n_fault:>9}")
