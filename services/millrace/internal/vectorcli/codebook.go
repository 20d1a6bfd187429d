package vectorcli

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/render"
)

// codebookEnding ends the names of codebook files; other values of -c are names of codebooks on
// workers.
const codebookEnding = ".safetensors"

// codebook is one on the workers.
type codebook struct {
	name, digest string
	shape        *pb.CodebookShape
	putOn        []string // ids of the workers on which upload put it
}

// codebookFlag adds -c.
func codebookFlag(fs *pflag.FlagSet, c *string) {
	fs.StringVarP(c, "codebook", "c", "", "codebook: a file "+codebookEnding+", which is put on a worker if none has it, and stays there; or the name of one on the workers")
}

// codebook finds the codebook of -c. If -c is a file that no worker has, it puts the file on a
// worker, and prints that unless quiet.
func (a *app) codebook(ctx context.Context, client pb.VectorServiceClient, c string, quiet bool) (*codebook, error) {
	if c == "" {
		return nil, failure.Usagef("no codebook: name a file or a codebook of the workers with -c")
	}
	list, err := client.ListCodebooks(ctx, &pb.ListCodebooksRequest{})
	if err != nil {
		return nil, failure.OfCall(err, c, nil)
	}
	if strings.HasSuffix(c, codebookEnding) {
		return a.upload(ctx, client, c, list.GetCodebooks(), quiet)
	}
	var names []string
	for _, b := range list.GetCodebooks() {
		if b.GetName() == c && b.GetState() == pb.CodebookState_CODEBOOK_STATE_READY {
			return &codebook{name: b.GetName(), digest: b.GetCodebookDigest(), shape: b.GetShape()}, usable(b.GetShape())
		}
		if !slices.Contains(names, b.GetName()) { // one name may be in two states
			names = append(names, b.GetName())
		}
	}
	for _, b := range list.GetCodebooks() {
		if b.GetName() == c {
			return nil, fmt.Errorf("%w: codebook %q is %s\ntry: millrace vectors load %s%s", failure.ErrState, c,
				render.Readable(b.GetState().String(), "CODEBOOK_STATE_"), c, a.TargetFlag())
		}
	}
	return nil, fmt.Errorf("%w: there is no codebook %q; there are: %s", failure.ErrState, c, render.List(names))
}

// upload returns the codebook of a file. If workers have a codebook with this digest, it uses that
// under its name there; else it puts the file on a worker under the name that putName returns.
func (a *app) upload(ctx context.Context, client pb.VectorServiceClient, path string, have []*pb.CodebookInfo, quiet bool) (*codebook, error) {
	file, err := openCodebook(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	out := &codebook{digest: publicDigest(file.Codebook), shape: shapeOf(file.Codebook)}
	out.name = putName(path, out.digest)
	for _, b := range have {
		if b.GetCodebookDigest() != out.digest {
			continue
		}
		if b.GetState() == pb.CodebookState_CODEBOOK_STATE_READY {
			out.name = b.GetName()
			return out, nil
		}
		if b.GetState() == pb.CodebookState_CODEBOOK_STATE_ON_DISK && b.GetProblem() == "" {
			out.name = b.GetName() // so that the put loads this file instead of writing a second one
		}
	}
	done, err := putCodebook(ctx, client, file, &pb.PutCodebookHeader{Codebook: out.name})
	if err != nil {
		return nil, err
	}
	for _, c := range done.GetCopies() {
		if c.GetAlreadyLoaded() {
			continue
		}
		out.putOn = append(out.putOn, c.GetWorkerId())
		if !quiet {
			fmt.Fprintln(a.Err, render.Line(fmt.Sprintf("put %s on %s as %s", path, c.GetWorkerId(), out.name)))
		}
	}
	return out, nil
}

// longestBase bounds the characters of the file's name in a name of putName.
const longestBase = 40

// putName returns the name under which a codebook's file is put if the caller gives none: the
// file's base name and 12 digits of the codebook's digest. Characters that names cannot have become
// "-".
func putName(path, digest string) string {
	base := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_':
			return r
		}
		return '-'
	}, strings.TrimSuffix(filepath.Base(path), codebookEnding))
	base = strings.Trim(base[:min(len(base), longestBase)], "-") // all of it is ASCII
	if base == "" {
		return render.ShortDigest(digest)
	}
	return base + "-" + render.ShortDigest(digest)
}

// printStays prints where a codebook that upload put stays, and how to remove it.
func (a *app) printStays(c *codebook) {
	if len(c.putOn) == 0 {
		return
	}
	fmt.Fprintln(a.Err, render.Line(fmt.Sprintf("codebook %s stays on %s for the next call; to remove it: millrace vectors unload %s%s, "+
		"then delete %s%s in the folder --codebooks of the worker", c.name, render.List(c.putOn), c.name, a.TargetFlag(), c.name, codebookEnding)))
}
