# SPDX-License-Identifier: Apache-2.0
"""What processes and the host hold, for comparing the end with the beginning. Reads /proc; Linux only."""
import contextlib
import os


def of_process(pid):
    """Anonymous and resident memory in bytes, descriptors and threads of a process; None if there is no such process.

    Growth is judged by anonymous memory alone, because pools are shared memory that grows to its budget by design, and libraries' pages come and go.
    """
    with contextlib.suppress(OSError, KeyError):
        with open(f"/proc/{pid}/status") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
        return {"anonymous": int(fields["RssAnon"].split()[0]) << 10, "resident": int(fields["VmRSS"].split()[0]) << 10, "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
                "threads": int(fields["Threads"])}
    return None


def files_below(*roots):
    """{path: size} of each file."""
    found = {}
    for root in roots:
        for directory, _, names in os.walk(root):
            for name in names:
                path = os.path.join(directory, name)
                with contextlib.suppress(OSError):
                    found[path] = os.lstat(path).st_size
    return found


def system_v_segments(pids):
    """Shared memory that these processes created and that nobody is attached to, such as UCX's if it were not marked for removal."""
    with open("/proc/sysvipc/shm") as file:
        heads, *lines = (line.split() for line in file)
    rows = [dict(zip(heads, line)) for line in lines]
    return [f"System V segment {row['shmid']}" for row in rows if row["nattch"] == "0" and int(row["cpid"]) in pids]


def table(heads, rows):
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in [heads, ["---"] * len(heads), *rows]]
    return "\n".join(lines)
