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

// maxBody bounds a JSON request. A playground's prompt is typed or pasted.
const maxBody = 1 << 20

// bridge makes a gRPC call for each HTTP request. The response is 200 with one line for each
// message, {"result": MESSAGE}, and finally {"error": ...} if the call fails. A call that fails
// before its first message has the error alone, with the nearest HTTP code.
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

// call makes a call and writes its responses. It returns the call's error. It returns nil if the
// browser is gone.
func (b *bridge) call(ctx context.Context, w http.ResponseWriter, m method, in proto.Message) error {
	stream, err := b.conn.NewStream(ctx, streaming, m.full)
	if err != nil {
		return err
	}
	// A failed send means that the stream has ended. RecvMsg returns its status.
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

// read decodes a request. If it cannot, it writes the error and returns false.
func read(w http.ResponseWriter, r *http.Request, in proto.Message) bool {
	// A page of another origin may send other types without a preflight request.
	if contentType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || contentType != "application/json" {
		refuse(w, http.StatusUnsupportedMediaType, codes.InvalidArgument, "the request is no JSON: send it with Content-Type application/json")
		return false
	}
	control := http.NewResponseController(w)
	// if it cannot be set, the connection is gone
	_ = control.SetReadDeadline(time.Now().Add(readTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	_ = control.SetReadDeadline(time.Time{}) // further reading detects that the browser leaves
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
