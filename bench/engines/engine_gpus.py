# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a measurement with vLLM uses, as options of a program here."""
import subprocess


def add_options(parser):
    parser.add_argument("--vllm-gpus", default="", help='GPUs of vLLM, as "1" or "2,3"; without, vLLM runs on the CPU')
    parser.add_argument("--group-gpus", default="", help='GPUs of the group, one a rank, as "0" or "0,1"; without, the group runs on the CPU')
    parser.add_argument("--host-pool", help="of each rank (default 512MiB; on a GPU 40GiB)")
    parser.add_argument("--device-pool", help="of each rank on a GPU (default 0)")


def group_options(service, arguments):
    """Options of a group where `arguments` say, as Service.start_group takes them. Tells the service of its GPUs."""
    if not arguments.group_gpus:
        return ["--host-pool", arguments.host_pool] if arguments.host_pool else []
    service.mpirun_options = ("-x", f"CUDA_VISIBLE_DEVICES={arguments.group_gpus}")
    return ["--device", "cuda", "--host-pool", arguments.host_pool or "40GiB", "--device-pool", arguments.device_pool or "0"]


def measured_on(arguments):
    """What a table says of the GPUs; nothing if none are used."""
    if not arguments.vllm_gpus and not arguments.group_gpus:
        return {}
    names = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], check=True, capture_output=True, text=True).stdout.splitlines()
    return {"GPUs": ", ".join(names), "group's": arguments.group_gpus or "none", "vLLM's": arguments.vllm_gpus or "none"}
