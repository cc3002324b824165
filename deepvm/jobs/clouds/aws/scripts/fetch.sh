cat > s3_read.py <<'END'
{s3_read}
END
"$python" s3_read.py {region} {bucket} {prefix}/package.tar.gz package.tar.gz || exit
mkdir -p package && tar -xzf package.tar.gz -C package || exit
export PYTHONPATH={folder}/package
