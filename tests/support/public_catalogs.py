"""Small files in the forms of the public catalogs, and a server that hands them out, or fails.

Heads, columns, quotes and odd values are those of skypilot-catalog's files (GCP 006059e0, AWS
00148f2a, Lambda 0f407038, Nebius 0082b043, RunPod 01acdfd4) and of what gpuhunt's providers write.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from support.process_starts import leaves_ring_1
from support.spot_advisor import say, serving


def info(
    name: str, count: object, mib: int, maker: str = "NVIDIA", total: int | None = None
) -> str:
    """The column GpuInfo, quoted: Python's text of a dictionary."""
    gpu = {"Name": name, "Manufacturer": maker, "Count": count, "MemoryInfo": {"SizeInMiB": mib}}
    return f'"{ {"Gpus": [gpu], "TotalGpuMemoryInMiB": total or mib} }"'


def gcp_info(mib: int) -> str:
    """GCP's has no comma in it, so it is not quoted."""
    return f"{{'Gpus': [{{'MemoryInfo': {{'SizeInMiB': {mib}}}}}]}}"


_TYPE = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB"
_PLACE = "Region,AvailabilityZone,Price,SpotPrice"
AWS_HEAD = f"{_TYPE},GpuInfo,Price,SpotPrice,Region,AvailabilityZone,Arch"
AWS_ROWS = (
    f"g4dn.xlarge,T4,1.0,4.0,16.0,{info('T4', 1, 16384)},0.526,0.180100,us-east-1,use1-az1,x86_64",
    f"g4dn.xlarge,T4,1.0,4.0,16.0,{info('T4', 1, 16384)},0.526,0.171200,us-east-1,use1-az4,x86_64",
    (
        f"g4dn.12xlarge,T4,4.0,48.0,192.0,{info('T4', 4, 16384)},3.912,1.402100,us-east-1,use1-az4,x86_64"
    ),
    (
        f"g5.xlarge,A10G,1.0,4.0,16.0,{info('A10G', 1, 22888)},1.006,0.412300,us-east-1,use1-az1,x86_64"
    ),
    (
        f"g5.12xlarge,A10G,4.0,48.0,192.0,{info('A10G', 4, 22888)},5.672,2.211100,us-east-1,use1-az1,x86_64"
    ),
    (
        f"p4d.24xlarge,A100,8.0,96.0,1152.0,{info('A100', 8, 40960)},21.957642,9.870000,us-east-1,use1-az6,x86_64"
    ),
    "c5.2xlarge,,,8.0,16.0,,0.34,0.120000,us-east-1,use1-az4,x86_64",
    "c5n.2xlarge,,,8.0,21.0,,0.432,0.150000,us-east-1,use1-az4,x86_64",
    "t3.large,,,2.0,8.0,,0.0832,0.030000,us-east-1,use1-az4,x86_64",
    "c3.2xlarge,,,8.0,15.0,,0.42,0.153700,us-east-1,use1-az3,x86_64",
    "c3.2xlarge,,,8.0,15.0,,0.42,0.236700,us-east-1,use1-az2,x86_64",
    "a1.2xlarge,,,8.0,16.0,,0.204,0.204000,us-east-1,use1-az2,arm64",
    "c1.medium,,,2.0,1.69921875,,0.13,0.041500,us-east-1,use1-az2,i386",
    f"g4dn.xlarge,T4,1.0,4.0,16.0,{info('T4', 1, 16384)},0.526,,us-west-2,usw2-az1,x86_64",
    (
        f"g5.xlarge,A10G,1.0,4.0,16.0,{info('A10G', 1, 22888)},1.006,0.500000,us-west-2,usw2-az2,x86_64"
    ),
    "c5.2xlarge,,,8.0,16.0,,0.34,0.130000,us-west-2,usw2-az1,x86_64",
    # foreign: Trainium, and a share of a GPU
    (
        f"trn1.2xlarge,Trainium,1.0,8.0,32.0,{info('Trainium', 1, 32768)},1.34,0.500000,us-east-1,use1-az4,x86_64"
    ),
    (
        f"g6f.large,L4,0.125,2.0,8.0,{info('L4', 0.125, 3072)},0.202,0.090000,us-east-1,use1-az4,x86_64"
    ),
)

GCP_HEAD = f"InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,{_PLACE}"
GCP_ROWS = (
    "a2-highgpu-1g,12.0,85.0,,,,us-central1,us-central1-a,0.73948,0.36975",
    "a2-highgpu-1g,12.0,85.0,,,,us-central1,us-central1-b,0.73948,0.36975",
    "a2-highgpu-8g,96.0,680.0,,,,us-central1,us-central1-a,5.91582,2.958",
    "a2-ultragpu-1g,12.0,170.0,,,,us-central1,us-central1-a,1.09962,0.54978",
    "a2-ultragpu-1g,12.0,170.0,,,,us-east5,us-east5-a,1.09962,0.31193",
    "a3-highgpu-8g,208.0,1872.0,,,,us-east4,us-east4-a,9.46006,2.15966",
    "a3-highgpu-8g,208.0,1872.0,,,,us-central1,us-central1-a,9.46006,2.88933",
    "g2-standard-4,4.0,16.0,,,,us-central1,us-central1-a,0.14670,0.05842",
    "g2-standard-48,48.0,192.0,,,,us-central1,us-central1-a,1.76040,0.70104",
    "a3-edgegpu-8g,208.0,1872.0,,,,us-central1,us-central1-a,9.46006,2.88933",
    "a3-edgegpu-8g-nolssd,208.0,1872.0,,,,us-central1,us-central1-a,9.46006,2.88933",
    "a3-ultragpu-8g-nolssd,224.0,2952.0,,,,us-central1,us-central1-b,12.266,3.74713",
    "a4-highgpu-8g,224.0,3968.0,,,,us-central1,us-central1-b,0.0,0.0",
    "n2-standard-8,8.0,32.0,,,,us-central1,us-central1-a,0.38847,0.0938",
    "n2-standard-16,16.0,64.0,,,,us-central1,us-central1-a,0.77694,0.1876",
    f",,,A100,1,{gcp_info(40960)},us-central1,us-central1-a,2.93391,1.4341",
    f",,,A100,8,{gcp_info(40960)},us-central1,us-central1-a,23.47126,11.4728",
    # what reserved GPUs cost, in the column of the price on demand; and the true one of another
    # region
    f",,,A100-80GB,1,{gcp_info(81920)},us-central1,us-central1-a,1.8462,1.964",
    f",,,A100-80GB,1,{gcp_info(81920)},us-east5,us-east5-a,4.4242,1.3356",
    f",,,H100,8,{gcp_info(81920)},us-east4,us-east4-a,78.37239,17.8848",
    f",,,H100,8,{gcp_info(81920)},us-central1,us-central1-a,33.60609,23.9408",
    f",,,B200,8,{gcp_info(184320)},us-central1,us-central1-b,90.216,32.6064",
    f",,,H100-MEGA,8,{gcp_info(81920)},northamerica-northeast2,northamerica-northeast2-c,35.39149,",
    f",,,L4,1,{gcp_info(24576)},us-central1,us-central1-a,0.56004,0.2231",
    f",,,L4,4,{gcp_info(24576)},us-central1,us-central1-a,2.24016,0.8924",
    ",,,tpu-v6e-1,1,tpu-v6e-1,asia-east1,asia-east1-c,700.0,700.0",
    ",,,tpu-v6e-1,1,tpu-v6e-1,us-central2,us-central2-b,700.0,700.0",
    ",,,tpu-v6e-1,1,tpu-v6e-1,us-central2,us-central2-b,700.0,700.0",
)

AZURE_HEAD = f"{_TYPE},GpuInfo,Price,SpotPrice,Region,Generation"
AZURE_ROWS = (
    f"Standard_NC24ads_A100_v4,A100-80GB,1,24,220,{info('A100', 1, 81920)},3.673,0.6611,eastus,V2",
    f'Standard_NC4as_T4_v3,T4,1,4,28,{info("T4", 1, 16384)},0.526,0.0526,eastus,"V1,V2"',
    f'Standard_NC64as_T4_v3,T4,4,64,440,{info("T4", 4, 16384)},4.352,0.4352,eastus,"V1,V2"',
    f'Standard_NC6s_v3,V100,1,6,112,{info("V100", 1, 16384)},3.06,0.306,eastus,"V1,V2"',
    f"Standard_ND96asr_v4,A100,8,96,900,{info('A100', 8, 40960)},27.197,4.8954,eastus,V2",
    'Standard_D8s_v5,,,8,32,,0.384,0.0768,eastus,"V1,V2"',
    'Standard_B2ms,,,2,8,,0.0832,,eastus,"V1,V2"',
    'Standard_D8s_v5,,,8,32,,0.384,0.0768,westus2,"V1,V2"',
)

LAMBDA_HEAD = f"{_TYPE},Price,Region,GpuInfo,SpotPrice"
NEBIUS_HEAD = LAMBDA_HEAD
_LAMBDA = (
    ("gpu_1x_a10", "A10", 1, 30, 200, "0.75", 24576),
    ("gpu_1x_a100_sxm4", "A100", 1, 30, 200, "1.29", 40960),
    ("gpu_8x_a100_80gb_sxm4", "A100-80GB", 8, 240, 1800, "14.32", 81920),
    ("gpu_8x_h100_sxm5", "H100", 8, 208, 1800, "31.92", 81920),
    ("gpu_8x_v100", "V100", 8, 92, 448, "6.32", 16384),
    ("gpu_8x_b200_sxm6", "B200", 8, 208, 2900, "53.52", 184320),
)
LAMBDA_ROWS = tuple(
    f"{name},{gpu},{n}.0,{vcpus}.0,{gib}.0,{price},{region},{info(gpu, float(n), mib)},"
    for name, gpu, n, vcpus, gib, price, mib in _LAMBDA
    for region in ("us-east-1", "us-west-2", "europe-central-1")
) + tuple(
    f"cpu_4x_general,,,4.0,16.0,0.2,{region},,"
    for region in ("us-east-1", "us-west-2", "europe-central-1")
)

NEBIUS_ROWS = (
    "cpu-d3_4vcpu-16gb,,0,4,16,0.0992,eu-north1,,",
    "cpu-d3_16vcpu-64gb,,0,16,64,0.3968,eu-north1,,",
    "cpu-d3_64vcpu-256gb,,0,64,256,1.5872,eu-north1,,",
    f"gpu-h100-sxm_1gpu-16vcpu-200gb,H100,1,16,200,2.95,eu-north1,{info('H100', 1, 81920)},1.25",
    (
        f"gpu-h100-sxm_8gpu-128vcpu-1600gb,H100,8,128,1600,23.60,eu-north1,{info('H100', 8, 81920)},10.00"
    ),
    f"gpu-h200-sxm_1gpu-16vcpu-200gb,H200,1,16,200,3.50,eu-north1,{info('H200', 1, 144384)},1.45",
    (
        f"gpu-h200-sxm_8gpu-128vcpu-1600gb,H200,8,128,1600,28.00,us-central1,{info('H200', 8, 144384)},11.60"
    ),
    (
        f"gpu-b200-sxm_8gpu-160vcpu-1792gb,B200,8,160,1792,44.00,us-central1,{info('B200', 8, 184320)},"
    ),
    f"gpu-l40s-a_1gpu-8vcpu-32gb,L40S,1,8,32,1.5484,eu-north1,{info('L40S', 1, 49152)},",
)

RUNPOD_HEAD = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Region,SpotPrice,Price,AvailabilityZone,GpuInfo"
_RUNPOD = (
    ("1x_A100-80GB_SECURE", "A100-80GB", 1, 8, 117, "1.39", 80),
    ("2x_A100-80GB_SECURE", "A100-80GB", 2, 16, 234, "2.78", 80),
    ("1x_H100-SXM_SECURE", "H100-SXM", 1, 20, 125, "2.69", 80),
    ("8x_H100-SXM_SECURE", "H100-SXM", 8, 160, 1000, "21.52", 80),
    ("1x_L40S_SECURE", "L40S", 1, 12, 62, "0.79", 48),
    ("1x_RTX4090_SECURE", "RTX4090", 1, 6, 41, "0.59", 24),
)
RUNPOD_ROWS = tuple(
    f"{name},{gpu},{n}.0,{vcpus}.0,{gib}.0,{region},{price},{price},{zone},{info(gpu, n, mib, 'Nvidia', n * mib)}"
    for name, gpu, n, vcpus, gib, price, mib in _RUNPOD
    for region, zone in (("US", "US-TX-1"), ("IS", "EUR-IS-1"))
)

SKYPILOT: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "aws": (AWS_HEAD, AWS_ROWS),
    "gcp": (GCP_HEAD, GCP_ROWS),
    "azure": (AZURE_HEAD, AZURE_ROWS),
    "lambda": (LAMBDA_HEAD, LAMBDA_ROWS),
    "nebius": (NEBIUS_HEAD, NEBIUS_ROWS),
    "runpod": (RUNPOD_HEAD, RUNPOD_ROWS),
}

HUNT_HEAD = (
    "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,flags,cpu_arch,"
    "provider_data"
)
HUNT_ROWS: Mapping[str, tuple[str, ...]] = {
    "aws": (
        "g4dn.xlarge,us-east-1,0.526,4,16.0,1,T4,16.0,False,,nvidia,,x86,",
        "g4dn.xlarge,us-east-1,0.1699,4,16.0,1,T4,16.0,True,,nvidia,,x86,",
        "g5.xlarge,us-east-1,1.006,4,16.0,1,A10G,24.0,False,,nvidia,,x86,",
        "g6e.xlarge,us-east-1,1.861,4,32.0,1,L40S,48.0,False,,nvidia,,x86,",
        "p4d.24xlarge,us-east-1,21.957642,96,1152.0,8,A100,40.0,False,,nvidia,,x86,",
        "c7g.xlarge,us-east-1,0.145,4,8.0,0,,,False,,,,arm,",
    ),
    "gcp": (
        "a2-highgpu-1g,us-central1-a,3.673385,12,85.0,1,A100,40.0,False,,nvidia,,x86,",
        "a2-highgpu-1g,us-central1-a,1.80385,12,85.0,1,A100,40.0,True,,nvidia,,x86,",
        "a3-highgpu-8g,us-east4-a,88.25,208,1872.0,8,H100,80.0,False,6000,nvidia,,x86,",
        "a3-highgpu-8g,us-central1-a,43.79,208,1872.0,8,H100,80.0,False,6000,nvidia,,x86,",
        "a3-highgpu-8g,us-west1-a,41.0,208,1872.0,8,H100,80.0,False,6000,nvidia,gcp-dws-calendar-mode,x86,",
        "g2-standard-4,us-central1-a,0.70674,4,16.0,1,L4,24.0,False,,nvidia,,x86,",
        "g2-standard-48,us-central1-a,4.000704,48,192.0,4,L4,24.0,False,,nvidia,,x86,",
        "n1-standard-8,us-central1-a,0.72999,8,30.0,1,T4,16.0,False,,nvidia,,x86,",
        "v5litepod-1,us-central1-a,1.2,24,48.0,1,v5litepod,16.0,False,,google,,x86,",
        "e2-standard-4,us-central1-a,0.134,4,16.0,0,,,False,,,,x86,",
    ),
    "lambda": (
        "gpu_8x_h100_sxm5,us-east-1,23.92,208,1800.0,8,H100,80.0,False,22528,nvidia,,x86,",
        "gpu_1x_a10,us-east-1,0.75,30,200.0,1,A10,24.0,False,1400,nvidia,,x86,",
        "gpu_1x_a100_sxm4,us-east-1,1.29,30,200.0,1,A100,40.0,False,512,nvidia,,x86,",
        "gpu_8x_v100,us-east-1,4.40,92,448.0,8,V100,16.0,False,5944,nvidia,,x86,",
        "gpu_1x_gh200,us-east-1,1.49,64,432.0,1,GH200,96.0,False,4096,nvidia,,arm,",
    ),
    "azure": (
        "Standard_NC4as_T4_v3,eastus,0.526,4,28.0,1,T4,16.0,False,,nvidia,,x86,",
        "Standard_NC4as_T4_v3,eastus,0.1052,4,28.0,1,T4,16.0,True,,nvidia,,x86,",
        "Standard_NC64as_T4_v3,eastus,4.352,64,440.0,4,T4,16.0,False,,nvidia,,x86,",
        "Standard_NC24ads_A100_v4,eastus,3.673,24,220.0,1,A100,80.0,False,,nvidia,,x86,",
        "Standard_NC24ads_A100_v4,eastus,0.6795,24,220.0,1,A100,80.0,True,,nvidia,,x86,",
        "Standard_ND96isr_H100_v5,eastus,98.32,96,1900.0,8,H100,80.0,False,,nvidia,,x86,",
        "Standard_D8s_v5,eastus,0.384,8,32.0,0,,,False,,,,x86,",
    ),
    "nebius": (
        (
            "gpu-h100-sxm"
            ' 8gpu-128vcpu-1600gb,eu-north1,23.6,128,1600.0,8,H100,80.0,False,,nvidia,,x86,"{""fabrics"":'
            ' []}"'
        ),
        "gpu-h100-sxm 8gpu-128vcpu-1600gb,eu-north1,10,128,1600.0,8,H100,80.0,True,,nvidia,,x86,",
        "gpu-h100-sxm 1gpu-16vcpu-200gb,eu-north1,2.95,16,200.0,1,H100,80.0,False,,nvidia,,x86,",
        (
            "gpu-h200-sxm"
            " 8gpu-128vcpu-1600gb,eu-west1,28.0,128,1600.0,8,H200,141.0,False,,nvidia,,x86,"
        ),
        "gpu-l40s-a 1gpu-8vcpu-32gb,eu-north1,1.5484,8,32.0,1,L40S,48.0,False,,nvidia,,x86,",
        "cpu-d3 4vcpu-16gb,eu-north1,0.0992,4,16.0,0,,,False,,,,x86,",
    ),
    "runpod": (
        "NVIDIA A100 80GB PCIe,US-TX-1,1.39,8,117.0,1,A100,80.0,False,,nvidia,,x86,",
        "NVIDIA A100-SXM4-80GB,US-TX-1,1.49,16,125.0,1,A100,80.0,False,,nvidia,,x86,",
        "NVIDIA H100 80GB HBM3,US-TX-1,2.69,20,125.0,1,H100,80.0,False,,nvidia,,x86,",
        "NVIDIA L40S,US-TX-1,0.86,16,94.0,1,L40S,48.0,False,,nvidia,,x86,",
        "NVIDIA L40S,US-TX-1,0.47,16,94.0,1,L40S,48.0,True,,nvidia,,x86,",
        "NVIDIA L40S,US-TX-1,1.72,32,188.0,2,L40S,48.0,False,,nvidia,,x86,",
        "NVIDIA L40S,US-TX-1,6.88,128,752.0,8,L40S,48.0,False,,nvidia,,x86,",
        "NVIDIA L40S,CA,0.79,16,94.0,1,L40S,48.0,False,,nvidia,,x86,",
        (
            "NVIDIA H100 80GB"
            " HBM3,US-TX-1,26.0,160,1000.0,8,H100,80.0,False,,nvidia,runpod-cluster,x86,{}"
        ),
        "cpu3c-2-4,US-TX-1,0.06,2,4.0,0,,,False,20.0,,,x86,",
        "NVIDIA GeForce RTX 4090,US-TX-1,0.69,6,41.0,1,RTX4090,24.0,False,,nvidia,,x86,",
    ),
}


def csv_file(head: str, rows: tuple[str, ...] | list[str]) -> bytes:
    """A CSV file as its publisher writes it."""
    return "".join(f"{line}\n" for line in (head, *rows)).encode()


def skypilot_file(cloud: str, *more: str) -> bytes:
    """skypilot-catalog's file of a cloud, with further rows."""
    head, rows = SKYPILOT[cloud]
    return csv_file(head, (*rows, *more))


def gpuhunt_csv(cloud: str, *more: str) -> bytes:
    return csv_file(HUNT_HEAD, (*HUNT_ROWS[cloud], *more))


def zipped(body: bytes, name: str = "catalog.csv") -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, body)
    return packed.getvalue()


JUST_WRITTEN = {"Last-Modified": "Fri, 31 Dec 2100 00:00:00 GMT"}
"""Of a file: nothing is true later than it was fetched."""

Answer = Callable[[Any], None]


class PublicServer:
    """Both catalogs at one address; ``answers`` by path wins over the samples.

    Counts requests, keeps their headers.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        self.headers: list[str] = []
        self.url = ""

    def __call__(self, handler: Any) -> None:
        self.asked.append(handler.path)
        self.headers.append(str(handler.headers))
        (self.answers.get(handler.path) or self._usual(handler.path))(handler)

    def _usual(self, path: str) -> Answer:
        parts = path.strip("/").split("/")
        if parts[-1] == "vms.csv":
            return say(skypilot_file(parts[-2]), **JUST_WRITTEN)
        cloud = {"lambdalabs": "lambda"}.get(parts[0], parts[0])
        if parts[-1] == "version" and cloud in HUNT_ROWS:
            return say(b"20261127-12\n")
        if parts[-1] == "catalog.zip" and cloud in HUNT_ROWS:
            return say(zipped(gpuhunt_csv(cloud)), **JUST_WRITTEN)
        return say(b"<h1>Not found</h1>", 404)


@contextmanager
def public_server() -> Iterator[PublicServer]:
    """A server on this machine that hands out the samples."""
    leaves_ring_1("a server")
    server = PublicServer()
    with serving(server) as url:
        server.url = url
        yield server
