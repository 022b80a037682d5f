"""Models with a fact sheet: weights as safetensors, their training, data and figures of quality, and a contact.

    from farandole import models

    models.save("models/landcover", model, licence="apache-2.0", contact="ana@example.org", data=source,
                figures={"f1": (0.78, 0.01)})
    models.load("models/landcover", into=Net())         # raises ModelError for what does not verify

Model hubs take the folder: ``model.safetensors`` and a card, ``README.md``, with front matter by huggingface_hub.
``farandole models --help`` lists the commands. Needs ``pip install "farandole[models]"``.
"""

from farandole.models.registry import facts, load, save, verify

__all__ = ["facts", "load", "save", "verify"]
