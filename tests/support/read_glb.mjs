// Reads a .glb as others do: glTF-Transform's accessors and the findings of Khronos' validator, as JSON.
// Usage: node read_glb.mjs FOLDER_OF_PACKAGES FILE.glb
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [packages, file] = process.argv.slice(2);
const load = createRequire(`${packages}/package.json`);
const { Logger, WebIO } = load("@gltf-transform/core");
const { validateBytes } = load("gltf-validator");

const bytes = new Uint8Array(readFileSync(file));
const document = await new WebIO().setLogger(new Logger(Logger.Verbosity.SILENT)).readBinary(bytes);
const [node, ...others] = document.getRoot().listScenes()[0].listChildren();
const [primitive, ...more] = node.getMesh().listPrimitives();
const attributes = {};
for (const name of primitive.listSemantics()) {
  const accessor = primitive.getAttribute(name);
  const rows = [];
  for (let row = 0; row < accessor.getCount(); row++) rows.push(accessor.getElement(row, []));
  attributes[name] = {
    type: accessor.getType(),
    kind: accessor.getArray().constructor.name,
    normalized: accessor.getNormalized(),
    min: accessor.getMinNormalized([]),
    rows,
  };
}
const { issues } = await validateBytes(bytes, { maxIssues: 0 });
console.log(
  JSON.stringify({
    num: 1 + others.length + more.length,
    mode: primitive.getMode(),
    matrix: node.getWorldMatrix(),
    attributes,
    issues: issues.messages.map(({ code, message, pointer }) => ({ code, message, pointer })),
  }),
);
