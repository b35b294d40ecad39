/* Search runs in a worker, and browsers start none for a page that was opened from disk. There, a hidden frame takes the worker's
   place: it loads the same script, and messages go to and fro as events. Material looks for the name IFrameWorker. */
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.IFrameWorker = IFrameWorker
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.ready = new Promise(resolve => {
        const script = this.inside.document.createElement("script")
        script.onload = resolve
        script.src = new URL(address, location.href).href
        this.inside.document.body.append(script)
      })
    }
    postMessage(data) {
      // an option as it is typed, --probe-every, would be a query without that word
      if (typeof data.data === "string") data = { ...data, data: data.data.replace(/(^|\s)-+(?=\w)/g, "$1") }
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })))
    }
    terminate() {
      this.inside.frameElement.remove()
    }
  }
  window.IFrameWorker = IFrameWorker
  window.Worker = IFrameWorker
}
