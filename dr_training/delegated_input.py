"""Rewrites how an int8 `.tflite` takes its bytes, so that the engine's fast part takes them.

    >>> model = delegate_input(converter.convert())

TensorFlow's converter begins such a graph with one QUANTIZE from uint8 to int8. XNNPACK, which
computes everything else, knows no conversion between those two types, so that it is left to a
loop of the interpreter's, which takes 2 to 6 % of a network's time
(`docs/decisions/0037-bytes-by-way-of-floats.md`). The same by way of floats, DEQUANTIZE and
QUANTIZE, it does know. A byte is a float exactly, so the integers are the same, and with them every
answer.
"""

from typing import Any, Final

from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils

_BYTES, _INTEGERS = schema.TensorType.UINT8, schema.TensorType.INT8
_BETWEEN: Final = b"pixels_as_floats"


def delegate_input(model: bytes) -> bytes:
    """The same network with a first step that XNNPACK computes; any other model as it is.

    Args:
        model: a `.tflite` file.
    """
    content = flatbuffer_utils.convert_bytearray_to_object(bytearray(model))
    graph = content.subgraphs[0]
    step, dequantize = _from_bytes(content, graph), _dequantize(content)
    if step is None or dequantize is None:
        return model
    taken = graph.tensors[step.inputs[0]]
    between = schema.TensorT()
    between.name, between.type = _BETWEEN, schema.TensorType.FLOAT32
    between.shape, between.shapeSignature = taken.shape, taken.shapeSignature
    between.hasRank = taken.hasRank
    between.buffer = len(content.buffers)
    content.buffers.append(schema.BufferT())
    graph.tensors.append(between)
    to_floats = schema.OperatorT()
    to_floats.opcodeIndex = dequantize
    to_floats.inputs, to_floats.outputs = [step.inputs[0]], [len(graph.tensors) - 1]
    graph.operators.insert(graph.operators.index(step), to_floats)
    step.inputs = [len(graph.tensors) - 1]
    return bytes(flatbuffer_utils.convert_object_to_bytearray(content))


def _from_bytes(content: Any, graph: Any) -> Any:
    """The step that makes the integers of the graph's input of bytes; None where there is none."""
    for step in graph.operators:
        if _code(content.operatorCodes[step.opcodeIndex]) != schema.BuiltinOperator.QUANTIZE:
            continue
        taken, given = graph.tensors[step.inputs[0]], graph.tensors[step.outputs[0]]
        if (taken.type, given.type) == (_BYTES, _INTEGERS) and step.inputs[0] in graph.inputs:
            return step
    return None


def _dequantize(content: Any) -> int | None:
    """Where DEQUANTIZE stands among the model's kinds of steps: it ends a graph with float answers,
    in a version that is newer than that of bytes."""
    for index, code in enumerate(content.operatorCodes):
        if _code(code) == schema.BuiltinOperator.DEQUANTIZE:
            return index
    return None


def _code(code: Any) -> int:
    # Kinds below 127 may stand in the older of both fields alone.
    return max(int(code.builtinCode), int(code.deprecatedBuiltinCode))
