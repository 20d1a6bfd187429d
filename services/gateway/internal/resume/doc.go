// Package resume continues a stream of server-sent events after its connection broke, without state.
//
// Every event has an id, a signed Ticket. A client that makes the same request again with the last
// id in the header Last-Event-ID gets the events after it, from any gateway that has the key:
//
//	first connection     e1 e2 e3 e4 ✗
//	                           └ id: how the answer began, and how much of it e3 completes
//	second connection    (e1 e2 e3) e4 e5 e6
//	                     generated again from the same seed, and dropped
//
// The answer is generated again and not resumed from token ids, because an id would then hold every
// token so far: a stream would send the square of its length. An id has about 130 characters
// however long the answer is, at most MaxIDLength. The cost is that the servers compute the dropped
// tokens again. The tokens are the same because class, model, prompt and seed decide them. Class and
// digests are compared, and so is the number of bytes up to the event; a difference ends the request
// with RESUME_MISMATCH before anything was sent.
//
// The two runs may divide the text differently into events. A Position therefore counts tokens and
// bytes of text, and an event that lies across it is divided.
package resume
