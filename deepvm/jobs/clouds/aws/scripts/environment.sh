if ! "$python" -c '{needed}'; then  # the image has not what a controller needs
  "$python" -m venv venv || {{ apt-get -q update && \
    apt-get -qy -o DPkg::Lock::Timeout=300 install python3-venv && "$python" -m venv venv; }} || exit
  python=$PWD/venv/bin/python
  "$python" -m pip install -q {requirements} || exit
fi
