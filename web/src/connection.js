// Connection to a page's server: one WebSocket, which comes back by itself, and says what state it is in. In a notebook
// it is one by the kernel, which passes on what the view says, and nothing else is different.
//
//     const connection = connect(model, { message, state })
//     connection.send({ t: "order", verb: "pause" })
//     connection.close()
//
// Where to connect and with which key is the host's to say (a plain page, or a notebook): it is asked by the custom
// message {ask: "contact"} and answers with {contact: {urls, key}}, a notebook with {contact: {kernel: true}} and the
// name of the view that has asked. The key is never in a trait, an address or a store.

const FIRST_MS = 250;
const LONGEST_MS = 10000;
const SILENCE_MS = 8000; // after which the server is asked, and after as much again counts as gone
const REFUSED = new Set([4401, 4403]);
const MUCH = 2 ** 18; // characters, after which the kernel is told that they were seen

// A connection by the kernel, in the words of a WebSocket.
class KernelSocket {
  constructor(model, view) {
    Object.assign(this, { model, view, readyState: WebSocket.CONNECTING, unseen: 0 });
    this.heard = (message) => message?.view === view && this.take(message);
    model.on("msg:custom", this.heard);
    model.send({ view, open: true });
  }

  take(message) {
    if ("closed" in message) return this.over({ code: message.closed });
    if (!("text" in message)) return;
    this.readyState = WebSocket.OPEN;
    this.onmessage?.({ data: message.text });
    this.unseen += message.text.length;
    if (this.unseen < MUCH) return;
    this.model.send({ view: this.view, seen: this.unseen });
    this.unseen = 0;
  }

  send(text) {
    this.model.send({ view: this.view, send: text });
  }

  close() {
    if (this.readyState === WebSocket.CLOSED) return;
    this.model.send({ view: this.view, gone: true });
    this.over({ code: 1000 });
  }

  over(event) {
    this.model.off("msg:custom", this.heard);
    this.readyState = WebSocket.CLOSED;
    this.onclose?.(event);
  }
}

export function connect(model, on) {
  let contact = null;
  let socket = null;
  let closed = false;
  let ended = false;
  let delay = FIRST_MS;
  let timer = 0;
  let which = 0;
  let heard = Date.now();
  const view = Math.random().toString(36).slice(2); // crypto.randomUUID is not where a page came by http

  const onCustom = (message) => {
    if (message?.view && message.view !== view) return;
    if (message && message.contact) {
      contact = message.contact;
      which = 0;
      open();
    } else if (message && message.refused) {
      on.state("refused", message.refused);
    }
  };
  model.on("msg:custom", onCustom);
  on.state("loading");
  model.send({ ask: "contact", view });

  function open() {
    clearTimeout(timer);
    if (closed || !contact) return;
    let opened = false;
    try {
      socket = contact.kernel ? new KernelSocket(model, view) : new WebSocket(contact.urls[which % contact.urls.length]);
    } catch {
      return later();
    }
    const own = socket;
    own.onopen = () => own.send(JSON.stringify({ key: contact.key }));
    own.onmessage = (event) => {
      heard = Date.now();
      for (const message of JSON.parse(event.data)) {
        if (message.t === "hello") {
          opened = true;
          delay = FIRST_MS;
          on.state("open");
        }
        ended ||= message.state === "ended";
        on.message(message);
      }
    };
    own.onclose = (event) => {
      if (own !== socket || closed) return;
      socket = null;
      if (REFUSED.has(event.code)) return on.state("refused", event.reason);
      if (ended) return on.state("over");
      if (!opened) which += 1; // another way to the same server
      on.state("lost");
      later();
    };
  }

  function later() {
    clearTimeout(timer);
    timer = setTimeout(open, delay);
    on.wait?.(delay);
    delay = Math.min(delay * 2, LONGEST_MS);
  }

  const watch = setInterval(() => {
    const silent = Date.now() - heard;
    if (socket?.readyState !== WebSocket.OPEN || ended) return;
    if (silent > 2 * SILENCE_MS) socket.close();
    else if (silent > SILENCE_MS) socket.send('{"t":"ping"}');
  }, SILENCE_MS / 2);

  return {
    byKernel: () => Boolean(contact?.kernel),
    send: (message) => socket?.readyState === WebSocket.OPEN && (socket.send(JSON.stringify(message)), true),
    now: () => {
      delay = FIRST_MS;
      if (!socket) open();
    },
    close: () => {
      closed = true;
      clearTimeout(timer);
      clearInterval(watch);
      model.off?.("msg:custom", onCustom);
      socket?.close();
    },
  };
}
