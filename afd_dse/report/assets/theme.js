"use strict";
// Charts are made in the colours of the light page; in the dark every colour is replaced by its partner.
function repainted(value, partners) {
  if (typeof value === "string") return partners[value.toLowerCase()] || value;
  if (Array.isArray(value)) return value.map((item) => repainted(item, partners));
  if (value && typeof value === "object" && !ArrayBuffer.isView(value)) {
    const copy = {};
    for (const key of Object.keys(value)) copy[key] = key === "bdata" ? value[key] : repainted(value[key], partners);
    return copy;
  }
  return value;
}
