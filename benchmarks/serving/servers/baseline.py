"""The obvious server, as in the study that this project follows: FastAPI, Pillow, Keras.

    DR_BENCH_MODEL=mobilenet.keras uvicorn benchmarks.serving.servers.baseline:app --workers 2

The whole photograph is decoded and resized, nothing is located or judged, and `predict` runs in
the handler.
"""

import io
import os
import time
from typing import Any

import keras
import numpy as np
from fastapi import FastAPI, Request
from PIL import Image

app = FastAPI()
model = keras.models.load_model(os.environ["DR_BENCH_MODEL"])


@app.get("/ping")
async def ping() -> dict[str, str]:
    """Whether the server is up."""
    return {"status": "ready"}


@app.post("/invocations")
async def invocations(request: Request) -> dict[str, Any]:
    """Grade one photograph."""
    started = time.perf_counter()
    body = await request.body()
    side = model.input_shape[1]
    photograph = Image.open(io.BytesIO(body)).convert("RGB").resize((side, side))
    probabilities = model.predict(np.asarray(photograph, dtype=np.float32)[np.newaxis], verbose=0)
    return {
        "predictions": probabilities[0].tolist(),
        "grade": int(probabilities[0].argmax()),
        "requestLatency": time.perf_counter() - started,
    }
