// Talking to the server: JSON, lines of JSON, and the binary transfer that holds everything that is drawn.

const address = new URL(location.href);
const token = address.searchParams.get("key"); // only in a notebook's frame, where cookies do not travel
if (token) {
  address.searchParams.delete("key");
  history.replaceState(null, "", address);
}
const headers = token ? { "X-Vitscope-Token": token } : {};

export class Refused extends Error {}

const answered = async (path, options = {}) => {
  let response;
  try {
    response = await fetch(path, { ...options, headers: { ...headers, ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer: is `vitscope explore` still running?");
  }
  if (!response.ok) throw new Refused(await response.text());
  return response;
};

const posted = (path, body, signal) => answered(path, {
  method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal,
});

export const getJson = async (path) => (await answered(path)).json();
export const postJson = async (path, body) => (await posted(path, body)).json();
export const postText = async (path, body) => (await posted(path, body)).text();
export const upload = async (file) => (await answered("api/upload", { method: "POST", body: file })).json();
export const pictureAddress = async (item) => URL.createObjectURL(await (await answered(`api/thumb/${item}`)).blob());

const TYPES = { u1: Uint8Array, i1: Int8Array, f4: Float32Array, i4: Int32Array };

// bytes -> {...head, arrays: {name: {data, shape}}}
export const unpack = (buffer) => {
  const view = new DataView(buffer);
  const length = view.getUint32(4, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const arrays = {};
  for (const { name, type, shape, at } of head.arrays) {
    arrays[name] = { data: new TYPES[type](buffer, 8 + length + at, shape.reduce((a, b) => a * b, 1)), shape };
  }
  return { ...head, arrays };
};

export const postBinary = async (path, body, signal) => unpack(await (await posted(path, body, signal)).arrayBuffer());

// An answer in lines: `onLine` gets each as soon as it comes.
export const postLines = async (path, body, onLine, signal) => {
  const reader = (await posted(path, body, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    rest += value || "";
    const lines = rest.split("\n");
    rest = lines.pop();
    lines.filter(Boolean).forEach((line) => onLine(JSON.parse(line)));
    if (done) return;
  }
};
