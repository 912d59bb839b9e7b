# The first kind of the study: one stage on a full base, everything that the project ever needs,
# nothing removed. For the experiment on image size only; benchmarks/images/kinds.py builds it.
ARG BASE_IMAGE=python:3.13
FROM ${BASE_IMAGE}
COPY . /opt/dr
RUN --mount=type=secret,id=ca \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \
    python3 -m venv /opt/venv && \
    /opt/venv/bin/pip install --disable-pip-version-check --quiet --require-hashes \
        --requirement /opt/dr/everything.txt
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin PYTHONPATH=/opt/dr DR_RUNTIME=tensorflow \
    DR_LAYOUT=lean PYTHONUNBUFFERED=1 HOME=/tmp
EXPOSE 8080
ENTRYPOINT ["python3", "-m", "inference_image.serve"]
CMD ["serve"]
