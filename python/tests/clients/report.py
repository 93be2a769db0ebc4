"""The table of all projects, and the tests that differ."""

from . import results

HEAD = "| project | passed with torch.func | of these make transforms | pass with Tower | accepted differences | fail |"


def print_table(projects):
    """`projects`: (project, its results with torch.func, with Tower). Gives the exit status."""
    rows, failed = [], 0
    for project, theirs, ours in projects:
        for why in dict.fromkeys(project.left_out.values()):
            names = [name for name in project.left_out if project.left_out[name] == why]
            print(f"left out: {project.name} {' '.join(names)}\n    {why}")
        if not theirs:
            rows.append(f"| {project.title} | no tests: {project.no_tests} |||||")
            continue
        passed = results.passed(theirs)
        differences = results.differences(theirs, ours)
        accepted = 0
        for name, message in differences.items():
            why = results.reason(name, project.accepted)
            accepted += why is not None
            print(f"{'accepted' if why else 'FAILED'}: {project.name} {name}\n    {message}")
            if why:
                print(f"    {why}")
        transforms = sum(theirs[name]["transforms"] > 0 for name in passed)
        fail = len(differences) - accepted
        failed += fail
        counts = (len(passed), transforms, len(passed) - len(differences), accepted, fail)
        rows.append(f"| {project.title} | " + " | ".join(map(str, counts)) + " |")
    print("", HEAD, "|---|--:|--:|--:|--:|--:|", *rows, sep="\n")
    return 1 if failed else 0
