# An image for the servers and the scheduler of a cluster; docs/tutorials/cluster.md explains how to run it.
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ make
WORKDIR /gluon_gc
COPY requirements/build.txt requirements/run.txt requirements/
RUN pip install --no-cache-dir --no-deps -r requirements/build.txt -r requirements/run.txt
COPY . .
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.11-slim-bookworm
# MXNet's library needs these system libraries, which its wheel does not contain.
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 libquadmath0 \
  && rm -rf /var/lib/apt/lists/*
COPY requirements/run.txt /requirements.txt
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-deps -r /requirements.txt /wheels/*.whl && rm -r /wheels
ENTRYPOINT ["bpslaunch"]
