# The course in a container, with PyTorch's build for the CPU:
#
#     docker build --tag loaderviz .
#     docker run --rm --shm-size=1g --publish 127.0.0.1:8888:8888 loaderviz
#
# JupyterLab then prints the address to open. --shm-size is for the DataLoader's workers.
FROM python:3.11-slim
RUN useradd --create-home learner
WORKDIR /home/learner/loaderviz
RUN chown learner .
USER learner
COPY --chown=learner . .
RUN python3 start.py
EXPOSE 8888
CMD ["python3", "start.py", "-m", "jupyterlab", "--ip=0.0.0.0", "--no-browser", "--notebook-dir=notebooks"]
