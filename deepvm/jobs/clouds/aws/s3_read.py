"""Read an object of a bucket with the role of this EC2 instance; of the standard library alone.

Its text is part of the user data of each machine, where nothing is installed yet:
``python s3_read.py REGION BUCKET KEY FILE``. Signature: AWS Signature Version 4.
"""

import datetime
import hashlib
import hmac
import json
import os
import sys
import time
import urllib.parse
import urllib.request

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def metadata(path: str, timeout_s: float = 5.0) -> str:
    """A fact of this instance, by IMDSv2. Raises OSError."""
    endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
    base = endpoint.rstrip("/") + "/latest/"
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
    wanted = urllib.request.Request(base + "api/token", headers=ttl, method="PUT")
    with _OPENER.open(wanted, timeout=timeout_s) as answer:
        token = answer.read().decode()
    asked = urllib.request.Request(
        base + "meta-data/" + path, headers={"X-aws-ec2-metadata-token": token}
    )
    with _OPENER.open(asked, timeout=timeout_s) as answer:
        return str(answer.read().decode())


def read(region: str, bucket: str, key: str) -> bytes:
    """The whole object. Raises OSError, ValueError."""
    role = metadata("iam/security-credentials/").split()[0]
    keys = json.loads(metadata("iam/security-credentials/" + role))
    end = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    base = os.environ.get("AWS_ENDPOINT_URL_S3") or f"https://s3.{region}.{end}"
    path = urllib.parse.quote(f"/{bucket}/{key}")
    now = datetime.datetime.now(datetime.timezone.utc)
    moment = now.strftime("%Y%m%dT%H%M%SZ")
    scope = now.strftime("%Y%m%d") + f"/{region}/s3/aws4_request"
    empty = hashlib.sha256(b"").hexdigest()
    headers = {
        "host": urllib.parse.urlsplit(base).netloc,
        "x-amz-content-sha256": empty,
        "x-amz-date": moment,
        "x-amz-security-token": keys["Token"],
    }
    names = ";".join(headers)
    asked = "\n".join(
        ["GET", path, "", *(f"{k}:{v}" for k, v in headers.items()), "", names, empty]
    )
    text = "\n".join(
        ["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(asked.encode()).hexdigest()]
    )
    signer = ("AWS4" + keys["SecretAccessKey"]).encode()
    for part in scope.split("/"):
        signer = hmac.new(signer, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(signer, text.encode(), hashlib.sha256).hexdigest()
    who = f"Credential={keys['AccessKeyId']}/{scope}, SignedHeaders={names}, Signature={signature}"
    request = urllib.request.Request(
        base + path, headers={**headers, "Authorization": f"AWS4-HMAC-SHA256 {who}"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def read_patiently(region: str, bucket: str, key: str) -> bytes:
    """The same; tries again for a minute: a new instance's role takes a while to be known."""
    for _ in range(19):
        try:
            return read(region, bucket, key)
        except (OSError, ValueError, LookupError):
            time.sleep(3)
    return read(region, bucket, key)


def main() -> None:
    """Save an object."""
    region, bucket, key, file = sys.argv[1:]
    try:
        found = read_patiently(region, bucket, key)
    except (OSError, ValueError, LookupError) as error:
        sys.exit(f"s3://{bucket}/{key}: {error}")
    with open(file, "wb") as target:
        target.write(found)


if __name__ == "__main__":
    main()
