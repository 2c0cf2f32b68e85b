"""Adds up JUnit reports and ends in one line: `summary.py REPORT.xml ...`.

Fails on a failure, a missing report and a report without tests.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def main(reports: list[str]) -> int:
    passed = failed = skipped = 0
    complete = True
    for report in reports:
        if not Path(report).exists():
            print(f"no report {report}: its runner did not finish")
            complete = False
            continue
        cases = list(ElementTree.parse(report).iter("testcase"))
        if not cases:
            print(f"{report} holds no test")
            complete = False
        for case in cases:
            if case.find("failure") is not None or case.find("error") is not None:
                failed += 1
                print(f"failed: {case.get('classname')}: {case.get('name')}")
            elif case.find("skipped") is not None:
                skipped += 1
            else:
                passed += 1
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 0 if complete and passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
