package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// maxBody bounds a request in JSON. A playground's prompt is typed or pasted.
const maxBody = 1 << 20

// bridge makes calls of requests over HTTP. A call that has an answer is 200 and a line for each: {"result": ANSWER}, and in the end
// {"error": ...} if its status is not OK. One that has none is that error alone, under the code of HTTP that is nearest.
type bridge struct{ conn grpc.ClientConnInterface }

// streaming is the shape of every call.
var streaming = &grpc.StreamDesc{ServerStreams: true}

func (b *bridge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m, known := methods[r.PathValue("method")]
	if !known {
		refuse(w, http.StatusNotFound, codes.Unimplemented, "the console calls no method of this name: use a client of gRPC")
		return
	}
	in := m.request()
	if !read(w, r, in) {
		return
	}
	ctx, cancel := context.WithCancel(r.Context()) // a browser that leaves cancels its call
	defer cancel()
	if shown := r.Header.Get("Authorization"); shown != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", shown)
	}
	if err := b.call(ctx, w, m, in); err != nil {
		fail(w, err)
	}
}

// call makes a call and writes what it answers. The error is the call's; none comes of a browser that is gone.
func (b *bridge) call(ctx context.Context, w http.ResponseWriter, m method, in proto.Message) error {
	stream, err := b.conn.NewStream(ctx, streaming, m.full)
	if err != nil {
		return err
	}
	// A failed send means that the stream has ended; its status comes with the receive.
	if err := stream.SendMsg(in); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for {
		out := m.answer()
		if err := stream.RecvMsg(out); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		text, err := protojson.Marshal(out)
		if err != nil {
			return err
		}
		if !writeLine(w, "result", text) {
			return nil
		}
	}
}

// read reads a request; where it is none, that is the answer.
func read(w http.ResponseWriter, r *http.Request, in proto.Message) bool {
	// A page of another origin may send other types without asking whether it may.
	if is, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || is != "application/json" {
		refuse(w, http.StatusUnsupportedMediaType, codes.InvalidArgument, "the request is no JSON: send it with Content-Type application/json")
		return false
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(readTimeout)) // where it cannot be set the connection is gone
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	_ = control.SetReadDeadline(time.Time{}) // reading on tells when the browser leaves
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		refuse(w, http.StatusRequestEntityTooLarge, codes.ResourceExhausted,
			fmt.Sprintf("the request is larger than %d bytes: use a client of gRPC for prompts of this size", large.Limit))
		return false
	case err != nil:
		refuse(w, http.StatusBadRequest, codes.InvalidArgument, "the request did not come whole: send it again")
		return false
	}
	if err := protojson.Unmarshal(body, in); err != nil {
		refuse(w, http.StatusBadRequest, codes.InvalidArgument, fmt.Sprintf("the request is no %s: %v", in.ProtoReflect().Descriptor().FullName(), err))
		return false
	}
	return true
}
