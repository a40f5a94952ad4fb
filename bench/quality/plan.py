# SPDX-License-Identifier: Apache-2.0
"""A plan that bench/quality/run measures: a head plan, and the program that runs it."""

import os
import re
import shlex


class Plan:
    """The value of --plan: [NAME=]HEAD_PLAN [OPTION...]. exact[:GAMMA[,ENOUGH]] is run by the oracle instead of millrace-batch."""

    def __init__(self, text):
        words = shlex.split(text)
        name, equals, head_plan = words[0].partition("=")
        self.head_plan, self.options = (head_plan if equals else name), words[1:]
        self.name = name if equals else " ".join(words)
        self.program = "millrace-batch"
        pattern, colon, rule = self.head_plan.partition(":")
        if pattern == "exact":
            self.program, self.head_plan = "exact_index", "adaptive" + colon + rule

    def directory(self, output):
        return os.path.join(output, re.sub(r"[^\w.-]+", "_", self.name))

    def command(self, directory_of_programs, options):
        """Returns the command's words. options: those of all plans, by name; the plan's own take precedence."""
        given = {word.partition("=")[0] for word in self.options}
        words = [os.path.join(directory_of_programs, self.program), "--resume", *self.options]
        for name, value in {**options, "--head-plan": self.head_plan}.items():
            if name not in given:
                words += [name, value]
        return words
