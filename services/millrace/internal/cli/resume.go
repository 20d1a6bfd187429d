package cli

import (
	"bytes"
	"os"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// resumeFrom makes req continue the stream whose events a file has, as generate --json printed them: several attempts one
// behind the other are one stream, and a last line that was cut is left out. The seed is the stream's, and another model or
// prompt than it had is refused by the server.
func resumeFrom(path string, req *pb.GenerateRequest) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return usagef("--resume: %w", err)
	}
	var started *pb.Started
	for i, line := range bytes.SplitAfter(raw, []byte("\n")) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		event := &pb.GenerateResponse{}
		if err := protojson.Unmarshal(line, event); err != nil {
			if !bytes.HasSuffix(line, []byte("\n")) {
				break // the writer was stopped in the middle of it
			}
			return usagef("--resume: line %d of %s is no event of generate --json: %w", i+1, path, err)
		}
		switch e := event.GetEvent().(type) {
		case *pb.GenerateResponse_Started:
			started = e.Started
		case *pb.GenerateResponse_Tokens:
			r := resumeOf(req, e.Tokens.GetOutputIndex())
			if n := len(r.GetTokenIds()); n != int(e.Tokens.GetTokenIndex()) {
				return usagef("--resume: line %d of %s has token %d of output %d where token %d comes next: lines are missing or of another stream",
					i+1, path, e.Tokens.GetTokenIndex(), e.Tokens.GetOutputIndex(), n)
			}
			r.TokenIds = append(r.TokenIds, e.Tokens.GetTokenIds()...)
			*r.TextBytes += uint64(len(e.Tokens.GetText()))
		case *pb.GenerateResponse_Finished:
			resumeOf(req, e.Finished.GetOutputIndex()).Finished = true
		}
	}
	if started == nil {
		return usagef("--resume: %s has no `started` event: nothing was begun, so leave --resume out", path)
	}
	if req.GetSampling().Seed != nil && req.GetSampling().GetSeed() != started.GetSeed() {
		return usagef("--seed %d: the stream in %s has the seed %d", req.GetSampling().GetSeed(), path, started.GetSeed())
	}
	req.Sampling.Seed = proto.Uint64(started.GetSeed())
	expect(&req.ExpectModelDigest, started.GetModelDigest())
	expect(&req.ExpectPromptDigest, started.GetPromptDigest())
	if len(req.GetResume()) == 0 { // it was begun, and no token came
		resumeOf(req, 0)
	}
	return nil
}

// expect sets an expectation that the command line leaves open.
func expect(field **string, digest string) {
	if *field == nil && digest != "" {
		*field = &digest
	}
}

// resumeOf is the entry of an output, made if there is none.
func resumeOf(req *pb.GenerateRequest, output uint32) *pb.Resume {
	at := slices.IndexFunc(req.GetResume(), func(r *pb.Resume) bool { return r.GetOutputIndex() == output })
	if at < 0 {
		at = len(req.GetResume())
		req.Resume = append(req.Resume, &pb.Resume{OutputIndex: output, TextBytes: proto.Uint64(0)})
	}
	return req.GetResume()[at]
}
