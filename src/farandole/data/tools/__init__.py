"""Commands of ``farandole data``, and what ``farandole run --stage`` runs before the script."""
