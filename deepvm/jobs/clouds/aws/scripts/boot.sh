#!/bin/bash
# {what} of the job {job} of deepvm. When this script ends, however that comes about, the machine does.
trap 'shutdown -h now' EXIT
shutdown -h +{boot_min} || exit  # if anything below hangs
touch {this_boot} && cat > {unit} <<'END' && systemctl enable {unit_name} || exit  # if it boots again
[Unit]
ConditionPathExists=!{this_boot}
[Service]
ExecStart=/sbin/shutdown -h now
[Install]
WantedBy=multi-user.target
END
umask 077
mkdir -p {folder} && cd {folder} || exit
export HOME="${{HOME:-/root}}"
for python in {pythons}; do command -v "$python" > python && break; done
python=$(cat python)
{install}
"$python" -m deepvm.jobs.{module} {region} {bucket} {prefix}
