#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks deploy/ and the commands of docs/ against the programs and against one another: named options exist, the programs read the files of
options, named ports are those that the programs listen on, and Kubernetes' own JSON schemas accept the manifests.

The schemas come from PyPI (kubernetes-validate), and kubectl renders the overlays. Tests that need either are skipped without it. Exit status 77
if there is not even a YAML parser."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.environ["MILLRACE_SOURCE_DIR"]
BIN_DIR = os.environ["MILLRACE_BIN_DIR"]
sys.path.append(os.path.join(ROOT, "tests", "support"))

import pypi  # noqa: E402

try:
    sys.path.append(pypi.install(os.path.join(ROOT, "tests", "deploy", "requirements.txt"), os.path.join(ROOT, "build", "deploy-packages")))
    import kubernetes_validate
    WITHOUT_SCHEMAS = None
except pypi.Unavailable as why:
    if os.environ.get("MILLRACE_REAL_MODEL") == "required":
        pypi.exit_unavailable(why)
    WITHOUT_SCHEMAS = str(why)
try:
    import yaml
except ImportError:
    print("skipped: neither PyPI nor python3-yaml")
    sys.exit(pypi.SKIPPED)

KUBERNETES = os.path.join(ROOT, "deploy", "kubernetes")
# The oldest and the newest release whose schemas are checked.
KUBERNETES_VERSIONS = "1.29", "1.36"
# JSON schemas of what we know about kinds that Kubernetes has no schema for, and where those kinds contain pods.
FOREIGN_SCHEMAS = os.path.join(ROOT, "tests", "deploy", "schemas.json")

PROGRAM_OF_ROLE = {"coordinator": "coordinator", "group": "worker", "batch": "batch"}
PROGRAMS = ["coordinator", "worker", "batch", "client", "decode"]


def read(*path):
    with open(os.path.join(ROOT, *path)) as file:
        return file.read()


def help_of(*command):
    return subprocess.run([os.path.join(BIN_DIR, f"millrace-{command[0]}"), *command[1:], "--help"], check=True, capture_output=True, text=True).stdout


def options_of(program):
    texts = [help_of(program)]
    if program == "client":
        texts += [help_of(program, name) for name in re.findall(r"^  ([a-z-]+)", texts[0].split("Subcommands:")[1], re.M)]
    return {name for text in texts for name in re.findall(r"^ +(?:-\w,)?(--[a-z0-9-]+)", text, re.M)}


OPTIONS = {program: options_of(program) for program in PROGRAMS}
# millrace-bench has no --help, so its options are not checked.
COMMAND = re.compile(r"millrace-(coordinator|worker|batch|client|decode|bench)(?=\s|\"|$)"
                     r"|(?:deploy/slurm/|/)(group|batch)\.sbatch\b"
                     r"|\bmillrace:\S+ (coordinator|group|batch)\b")


def commands(text):
    """(program, options) of the commands in the text of a shell script or of a unit."""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        found = list(COMMAND.finditer(line))
        for match, following in zip(found, [*found[1:], None]):
            words = line[match.end():following.start() if following else len(line)]
            words = re.split(r"[|;&`#]", words)[0]
            named = match[1] or PROGRAM_OF_ROLE[match[2] or match[3]]
            if named != "bench":
                yield named, re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", words)


def code_blocks(markdown):
    return "\n".join(re.findall(r"^ *```\w*\n(.*?)^ *```", markdown, re.M | re.S))


def documents(path):
    """The objects of a YAML file."""
    with open(path) as file:
        return [document for document in yaml.safe_load_all(file) if document]


def whole_objects():
    """{file: complete objects, as they are before kustomize patches them}."""
    files = glob.glob(os.path.join(KUBERNETES, "**", "*.yaml"), recursive=True)
    objects = {os.path.relpath(path, ROOT): documents(path) for path in sorted(files) if not path.endswith("kustomization.yaml")}
    # The others are kustomize's own.
    return {path: things for path, things in objects.items() if all("apiVersion" in thing for thing in things)}


def patches():
    """(file, kind that the patch is for, operations) of all JSON patches."""
    for path in glob.glob(os.path.join(KUBERNETES, "**", "kustomization.yaml"), recursive=True):
        for document in documents(path):
            for patch in document.get("patches", []):
                if "target" in patch:
                    yield os.path.relpath(path, ROOT), patch["target"]["kind"], yaml.safe_load(patch["patch"])


def pod_specs(thing):
    """All pod specs inside an object."""
    if isinstance(thing, dict):
        if "containers" in thing:
            yield thing
        for value in thing.values():
            yield from pod_specs(value)
    elif isinstance(thing, list):
        for value in thing:
            yield from pod_specs(value)


def containers(things):
    return [container for spec in pod_specs(things) for container in spec["containers"]]


CONFIG_FOLDER = "/etc/millrace/config/"


def generated_maps():
    """{ConfigMap: {key: text}} as the base generates them."""
    kustomization, = documents(os.path.join(KUBERNETES, "base", "kustomization.yaml"))
    return {entry["name"]: {file: read("deploy", "kubernetes", "base", file) for file in entry["files"]} for entry in kustomization["configMapGenerator"]}


def config_maps_of(spec):
    """Names of the ConfigMaps that a pod has."""
    return [volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume]


def effective_options(args, maps, spec):
    """{option: value} that the program of a container reads from its arguments and from the files in its pod's ConfigMaps."""
    role, *options = args
    if role not in PROGRAM_OF_ROLE:
        return {}
    files = {key: text for name in config_maps_of(spec) for key, text in maps[name].items()}
    with tempfile.TemporaryDirectory() as directory:
        for key, text in files.items():
            with open(os.path.join(directory, key), "w") as file:
                file.write(text)
        # Kubernetes fills in names and addresses.
        words = [re.sub(r"\$\(\w+\)", "10.0.0.1", option.replace(CONFIG_FOLDER, f"{directory}/")) for option in options]
        return printed_options(PROGRAM_OF_ROLE[role], *words)


def printed_options(program, *words):
    done = subprocess.run([os.path.join(BIN_DIR, f"millrace-{program}"), *words, "--print-config"], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"millrace-{program} {words}: {done.stderr}")
    return {key: value.strip('"') for key, value in re.findall(r"^([a-z0-9-]+) = (.*)$", done.stdout, re.M)}


def selected(labels, selector):
    return selector.items() <= labels.items()


class OptionsTest(unittest.TestCase):
    def check(self, where, program, options):
        self.assertEqual([option for option in options if option not in OPTIONS[program]], [], f"{where}: millrace-{program} has no such option")

    def test_options_in_scripts_units_and_documents_exist(self):
        scripts = ["deploy/quickstart", "deploy/containers/entry", "deploy/containers/Containerfile",
                   *(os.path.relpath(path, ROOT) for pattern in ("deploy/systemd/*.service", "deploy/slurm/*.sbatch")
                     for path in glob.glob(os.path.join(ROOT, pattern)))]
        texts = {path: read(path) for path in scripts}
        pages = ["README.md", *(os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True))]
        texts.update((path, code_blocks(read(path))) for path in pages if "/adr/" not in path)
        seen = 0
        for path, text in texts.items():
            for program, options in commands(text):
                self.check(path, program, options)
                seen += len(options)
        self.assertGreater(seen, 50)

    def test_programs_read_the_files_of_options(self):
        paths = [path for pattern in ("*.toml", "*.toml.example") for path in glob.glob(os.path.join(ROOT, "deploy", "**", pattern), recursive=True)]
        for path in paths:
            role = re.match("[a-z]+", os.path.basename(path))[0]
            with self.subTest(path=path):
                self.assertTrue(printed_options(PROGRAM_OF_ROLE[role], "--config", path))
        self.assertGreaterEqual(len(paths), 9)

    def test_options_that_are_comments_in_files_exist(self):
        for path in glob.glob(os.path.join(ROOT, "deploy", "**", "*.toml.example"), recursive=True):
            program = PROGRAM_OF_ROLE[re.match("[a-z]+", os.path.basename(path))[0]]
            with open(path) as file:
                self.check(path, program, [f"--{key}" for key in re.findall(r"^# ([a-z-]+) = ", file.read(), re.M)])

    def test_options_that_the_entry_point_adds_exist(self):
        entry = read("deploy/containers/entry")
        coordinator, group = entry[entry.index("  coordinator)"):].split("  group)")
        self.check("entry", "coordinator", [f"--{name}" for name in re.findall(r"unless_given ([a-z-]+)", coordinator)])
        self.check("entry", "worker", [f"--{name}" for name in re.findall(r"unless_given ([a-z-]+)", group)])

    def test_options_in_manifests_exist(self):
        for path, objects in whole_objects().items():
            for container in containers(objects):
                role, *options = container["args"]
                if role == "host":
                    continue
                self.check(path, PROGRAM_OF_ROLE[role], [option.split("=")[0] for option in options])
        for path, kind, operations in patches():
            program = {"Deployment": "coordinator", "StatefulSet": "worker"}[kind]
            added = [operation["value"] for operation in operations if operation["path"].endswith("/args/-")]
            self.check(path, program, [option.split("=")[0] for option in added if not option.startswith("--config=")])
            for option in added:
                if option.startswith(f"--config={CONFIG_FOLDER}"):
                    self.assertTrue(os.path.exists(os.path.join(ROOT, os.path.dirname(path), option.split("/")[-1])), option)


class PortsTest(unittest.TestCase):
    def setUp(self):
        self.objects = [thing for things in whole_objects().values() for thing in things]

    def of_kind(self, kind):
        return [thing for thing in self.objects if thing["kind"] == kind]

    def options(self, container):
        """{option: value} of a container of this folder's objects."""
        spec, = [spec for thing in self.objects for spec in pod_specs(thing) if any(one is container for one in spec["containers"])]
        return effective_options(container["args"], generated_maps(), spec)

    def listened_on(self, container):
        """{port name: number} according to the container's options."""
        role = container["args"][0]
        if role not in ("coordinator", "group"):
            return {}
        options = self.options(container)
        if role == "coordinator":
            return {"http": int(options["http-port"]), "groups": int(options["group-port"]), "admin": int(options["admin-port"])}
        first, ranks = int(options["kv-port"]), int(options["tp"]) * int(options["cp"])
        return {f"kv-{rank}": first + rank for rank in range(ranks)}

    def pods(self):
        """(labels, container) of every pod that an object creates."""
        for thing in self.objects:
            for template in (value for value in self.templates(thing)):
                for container in template["spec"]["containers"]:
                    yield template["metadata"]["labels"], container

    def templates(self, thing):
        if isinstance(thing, dict):
            for key, value in thing.items():
                if key in ("template", "leaderTemplate", "workerTemplate"):
                    yield value
                else:
                    yield from self.templates(value)

    def test_containers_name_the_ports_of_their_options(self):
        ssh = int(re.search(r"^port=(\d+)$", read("deploy/containers/entry"), re.M)[1])
        for _, container in self.pods():
            named = {port["name"]: port["containerPort"] for port in container["ports"]}
            if named.pop("ssh", ssh) != ssh:
                self.fail(f"{container['name']}: the entry point's ssh server is on port {ssh}")
            expected = self.listened_on(container)
            if expected:
                self.assertEqual(named, expected)

    def test_services_lead_to_ports_that_their_pods_have(self):
        for service in self.of_kind("Service"):
            pods = [container for labels, container in self.pods() if selected(labels, service["spec"]["selector"]) and container["args"] != ["host"]]
            self.assertTrue(pods, service["metadata"]["name"])
            for port in service["spec"]["ports"]:
                for container in pods:
                    # Each Service has the port numbers that the programs listen on, so that documents need to name only one number.
                    self.assertEqual(self.listened_on(container)[port["targetPort"]], port["port"], service["metadata"]["name"])

    def test_probes_and_annotations_ask_ports_that_there_are(self):
        for _, container in self.pods():
            names = {port["name"] for port in container["ports"]}
            for probe in (value for key, value in container.items() if key.endswith("Probe")):
                for kind in "httpGet", "tcpSocket":
                    if kind in probe:
                        self.assertIn(probe[kind]["port"], names)
        for deployment in self.of_kind("Deployment"):
            template = deployment["spec"]["template"]
            annotations = template["metadata"]["annotations"]
            self.assertEqual(int(annotations["prometheus.io/port"]), self.listened_on(template["spec"]["containers"][0])["admin"])
        for monitor in self.of_kind("ServiceMonitor"):
            service, = [service for service in self.of_kind("Service") if selected(service["metadata"]["labels"], monitor["spec"]["selector"]["matchLabels"])]
            names = {port["name"] for port in service["spec"]["ports"]}
            self.assertLessEqual({endpoint["port"] for endpoint in monitor["spec"]["endpoints"]}, names)

    def test_groups_look_for_their_coordinator_where_a_service_is(self):
        services = {service["metadata"]["name"]: service for service in self.of_kind("Service")}
        for _, container in self.pods():
            if container["args"][0] == "group":
                name, port = self.options(container)["coordinator"].split(":")
                self.assertIn(int(port), [entry["port"] for entry in services[name]["spec"]["ports"]])
                # A coordinator is not ready until it has a group, and without this option no group would find it.
                self.assertTrue(services[name]["spec"]["publishNotReadyAddresses"])

    def test_the_network_lets_through_what_is_listened_on_and_no_more(self):
        policies = {policy["metadata"]["name"]: policy["spec"] for policy in self.of_kind("NetworkPolicy")}
        for labels, container in self.pods():
            expected = set(self.listened_on(container).values())
            if not expected:
                continue
            allowed = set()
            for name, policy in policies.items():
                if selected(labels, policy["podSelector"]["matchLabels"]) and name != "millrace-group-ranks":
                    for rule in policy["ingress"]:
                        for port in rule["ports"]:
                            allowed |= set(range(port["port"], port.get("endPort", port["port"]) + 1))
            self.assertEqual(allowed, expected, container["args"])
        # Groups can reach their coordinator.
        out = [port["port"] for rule in policies["millrace-group"]["egress"] for port in rule["ports"] if port["protocol"] == "TCP"]
        self.assertEqual(out, [8001, 53])

    def test_defaults_are_those_of_programs_documents_and_images(self):
        entry = read("deploy/containers/entry")
        of_entry = {name: int(value) for name, value in re.findall(r"unless_given ([a-z-]+-port) (\d+)", entry)}
        of_program = {name: int(value) for name, value in re.findall(r"^  (--[a-z-]+-port) N .*\(default (\d+)\)", help_of("coordinator"), re.M)}
        coordinator, = [self.listened_on(container) for _, container in self.pods() if container["args"][0] == "coordinator"]
        self.assertEqual(coordinator, {"http": of_program["--http-port"], "groups": of_program["--group-port"], "admin": of_entry["admin-port"]})
        for _, container in self.pods():
            if container["args"][0] == "group":
                self.assertEqual(self.listened_on(container)["kv-0"], of_entry["kv-port"])
        exposed = re.search(r"^EXPOSE (.*)$", read("deploy/containers/Containerfile"), re.M)[1].split()
        self.assertEqual(exposed[:3], [str(port) for port in coordinator.values()])
        self.assertTrue(exposed[3].startswith(f"{of_entry['kv-port']}-"))
        unit = printed_options("coordinator", "--config", os.path.join(ROOT, "deploy", "systemd", "coordinator.toml.example"))
        self.assertEqual({int(port) for name, port in unit.items() if name.endswith("-port")}, set(coordinator.values()))
        group = printed_options("worker", "--config", os.path.join(ROOT, "deploy", "systemd", "group.toml.example"))
        self.assertEqual(int(group["kv-port"]), of_entry["kv-port"])
        self.assertTrue(group["coordinator"].endswith(f":{coordinator['groups']}"))
        ranks = re.search(r"^MILLRACE_RANKS=(\d+)$", read("deploy/systemd/group.env.example"), re.M)[1]
        self.assertEqual(int(group["tp"]) * int(group["cp"]), int(ranks))
        self.assertIn(f"--kv-port {of_entry['kv-port']} ", read("deploy/slurm/group.sbatch"))
        scraped = re.search(r'targets: \["[^:]+:(\d+)"\]', read("deploy/monitoring/prometheus.yml"))[1]
        self.assertIn(int(scraped), (coordinator["http"], coordinator["admin"]))
        table = read("docs/operations.md").split("\n## Ports\n")[1].split("\n## ")[0]
        for name in "http", "groups":
            self.assertIn(f"({coordinator[name]})", table)


class ManifestTest(unittest.TestCase):
    def validate(self, thing, where):
        for version in KUBERNETES_VERSIONS:
            if "." in thing["apiVersion"].split("/")[0] and not thing["apiVersion"].split("/")[0].endswith("k8s.io") or thing["kind"] == "LeaderWorkerSet":
                self.validate_foreign(thing, where, version)
                continue
            with self.subTest(where=where, kind=thing["kind"], version=version):
                kubernetes_validate.validate(thing, version, strict=True)

    def validate_foreign(self, thing, where, version):
        import jsonschema
        with open(FOREIGN_SCHEMAS) as file:
            schemas = json.load(file)
        with self.subTest(where=where, kind=thing["kind"]):
            jsonschema.validate(thing, schemas[thing["kind"]])
        for number, spec in enumerate(pod_specs(thing)):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{thing['metadata']['name']}-{number}"}, "spec": spec}
            self.validate(pod, where)

    def setUp(self):
        if WITHOUT_SCHEMAS:
            self.skipTest(WITHOUT_SCHEMAS)

    def test_kubernetes_takes_every_object(self):
        count = 0
        for path, objects in whole_objects().items():
            for thing in objects:
                self.validate(thing, path)
                count += 1
        self.assertGreaterEqual(count, 10)

    def test_the_schemas_refuse_a_misspelt_field(self):
        deployment, = [thing for things in whole_objects().values() for thing in things if thing["kind"] == "Deployment"]
        deployment["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpGets"] = {}
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(deployment, KUBERNETES_VERSIONS[0], strict=True)

    def test_overlays_with_all_components_are_taken_too(self):
        kubectl = shutil.which("kubectl")
        if not kubectl:
            self.skipTest("no kubectl")
        components = sorted(os.listdir(os.path.join(KUBERNETES, "components")))
        for overlay in "cpu", "cuda":
            for chosen in ([], components if overlay == "cpu" else [name for name in components if name != "leaderworkerset"]):
                with tempfile.TemporaryDirectory(dir=os.path.join(ROOT, "build")) as directory:
                    with open(os.path.join(directory, "kustomization.yaml"), "w") as file:
                        yaml.safe_dump({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "namespace": "millrace",
                                        "resources": [os.path.relpath(os.path.join(KUBERNETES, overlay), directory)],
                                        "components": [os.path.relpath(os.path.join(KUBERNETES, "components", name), directory) for name in chosen]}, file)
                    done = subprocess.run([kubectl, "kustomize", directory], capture_output=True, text=True)
                if "unknown field" in done.stderr and "components" in done.stderr:
                    self.skipTest("kubectl knows no components")
                self.assertEqual(done.returncode, 0, done.stderr)
                rendered = list(yaml.safe_load_all(done.stdout))
                for thing in rendered:
                    self.validate(thing, f"{overlay} {chosen}")
                    self.assertEqual(thing["metadata"]["namespace"], "millrace")
                # Names of ConfigMaps are complete: a pod's are there.
                maps = {thing["metadata"]["name"]: thing["data"] for thing in rendered if thing["kind"] == "ConfigMap"}
                for spec in pod_specs(rendered):
                    for container in spec["containers"]:
                        self.assertRegex(container["image"], rf"/millrace:[0-9.]+-{overlay}$")
                        self.assertEqual(len(container["args"]), len(set(container["args"])), container["args"])
                        options = effective_options(container["args"], maps, spec)
                        if container["args"][0] in PROGRAM_OF_ROLE:
                            self.assertEqual("group-tls-cert" in options, "access" in chosen and not (
                                container["args"][0] == "group" and "leaderworkerset" in chosen))
                        if overlay == "cuda" and container["args"][0] == "group":
                            self.assertEqual(container["resources"]["limits"]["nvidia.com/gpu"], int(options["tp"]) * int(options["cp"]))
                            self.assertEqual(options["device"], "cuda")


if __name__ == "__main__":
    unittest.main(verbosity=2)
