# specdec for the CPU; for NVIDIA GPUs with EXTRA=cuda, and for TPUs with EXTRA=tpu:
#   docker build --build-arg EXTRA=cuda --tag specdec:cuda .
#   docker run --gpus all --volume "$PWD:/work" specdec:cuda decode --gin_file=demo.gin --compare
# On the virtual machine of a TPU, run with --privileged --net host.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS packages
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY specdec specdec
COPY gin gin
COPY configs configs
COPY demo demo
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /packages .

FROM python:${PYTHON}-slim
# An extra of pyproject.toml. The CPU needs none; hub reads names on Hugging Face's hub.
ARG EXTRA=hub
COPY --from=packages /packages /packages
RUN pip install --no-cache-dir "$(echo /packages/*.whl)[${EXTRA},hub]"
WORKDIR /work
ENTRYPOINT ["specdec"]
CMD ["--help"]
