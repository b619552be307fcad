# An adapter as a service over HTTP (docs/deploy.md):
#
#   docker build -t kalmanclip .
#   docker run -p 127.0.0.1:8000:8000 -v "$PWD/pets.adapter:/adapter:ro" kalmanclip
#
# Extra flags for pip, such as a CPU-only index of torch: docker build --build-arg PIP_FLAGS="..."

FROM python:3.12-slim

ARG PIP_FLAGS=""

WORKDIR /build
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src ./src
RUN pip install --no-cache-dir ${PIP_FLAGS} ".[serve]"

# weights of backbones other than tiny are downloaded to HF_HOME: give it a volume to keep them
ENV HF_HOME=/cache KALMANCLIP_CACHE=off PYTHONUNBUFFERED=1
RUN useradd --create-home kalmanclip && mkdir /cache && chmod 777 /cache
USER kalmanclip
WORKDIR /home/kalmanclip

EXPOSE 8000
HEALTHCHECK --start-period=120s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["kalmanclip"]
CMD ["serve", "/adapter", "--host", "0.0.0.0", "--port", "8000"]
