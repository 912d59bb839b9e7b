# The third kind of the study: two stages, and only what serving needs (TensorFlow for CPUs, no
# OpenCV, no training, no tests). Nothing of an installed package is removed.
ARG BUILD_IMAGE=python:3.13
ARG BASE_IMAGE=python:3.13-slim
FROM ${BUILD_IMAGE} AS build
COPY serving.txt /build/
RUN --mount=type=secret,id=ca \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \
    python3 -m venv /opt/venv && \
    /opt/venv/bin/pip install --disable-pip-version-check --quiet --require-hashes \
        --no-cache-dir --requirement /build/serving.txt

FROM ${BASE_IMAGE}
COPY --from=build /opt/venv /opt/venv
COPY inference_image /opt/dr/inference_image
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin PYTHONPATH=/opt/dr DR_RUNTIME=tensorflow \
    DR_LAYOUT=lean PYTHONUNBUFFERED=1 HOME=/tmp
EXPOSE 8080
ENTRYPOINT ["python3", "-m", "inference_image.serve"]
CMD ["serve"]
