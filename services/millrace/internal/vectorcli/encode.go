package vectorcli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/vectorfile"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/pieces"
	"github.com/millrace/millrace/services/millrace/internal/render"
	"github.com/millrace/millrace/services/millrace/internal/session"
	"github.com/millrace/millrace/services/millrace/internal/tty"
)

// pieceFlags are the flags of encode and decode.
type pieceFlags struct {
	codebook, out string
	inFlight      int
	json          bool
}

func (f *pieceFlags) add(cmd *cobra.Command, out string) {
	fs := cmd.Flags()
	codebookFlag(fs, &f.codebook)
	fs.StringVarP(&f.out, "output", "o", "", out)
	fs.IntVar(&f.inFlight, "in-flight", 4, "pieces of up to 4 MiB computed at once, [1, 64]")
	fs.BoolVar(&f.json, "json", false, "print one JSON object")
}

func (f *pieceFlags) check(endings ...string) error {
	if f.inFlight < 1 || f.inFlight > 64 {
		return failure.Usagef("--in-flight is %d: want 1 to 64", f.inFlight)
	}
	for _, ending := range endings {
		if strings.HasSuffix(f.out, ending) {
			return nil
		}
	}
	return failure.Usagef("-o is %q: want a file that ends in %s", f.out, strings.Join(endings, " or "))
}

// piecesDone is the summary of encode and decode.
type piecesDone struct {
	File     string  `json:"file"`
	Rows     int64   `json:"rows"`
	RowBytes int     `json:"row_bytes"` // in the file
	Codebook string  `json:"codebook"`
	Digest   string  `json:"codebook_digest"`
	Seconds  float64 `json:"seconds"`
}

func (a *app) tell(d piecesDone, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(a.Out).Encode(d)
	}
	name := d.Codebook
	switch {
	case name == d.Digest:
		name = render.ShortDigest(name)
	case !strings.HasSuffix(name, render.ShortDigest(d.Digest)): // names of putName end with it
		name += " " + render.ShortDigest(d.Digest)
	}
	fmt.Fprintln(a.Out, render.Line(fmt.Sprintf("%s: %d rows of %s, codebook %s, %s, %s rows/s", d.File, d.Rows, render.Bytes(uint64(d.RowBytes)), name,
		render.Duration(time.Duration(d.Seconds*1e9)), render.Count(uint64(float64(d.Rows)/max(d.Seconds, 1e-9))))))
	return nil
}

// encode encodes a file of rows.
func (a *app) encode() *cobra.Command {
	var f pieceFlags
	var distances string
	req := &pb.EncodeRequest{}
	cmd := &cobra.Command{
		Use:   "encode ROWS",
		Short: "Encode rows: the number of the nearest codeword of each",
		Long: "Encodes the rows of a file in pieces, several at a time; a piece whose worker is lost is computed elsewhere, to the same\n" +
			"codes. Codes of a flat codebook are u1 up to 256 codewords and u2 above, one a row or, with --neighbours, (rows,\n" +
			"neighbours); those of a product codebook are (rows, bytes), packed into as few bits as they need, as faiss packs them.\n\n" +
			"A codebook's file that no worker has is put on one, named after the file and its digest. It stays there, in memory and in\n" +
			"the worker's codebooks folder, so that the next call need not send it. At its end the command prints how to remove it.",
		Example: "  millrace vectors encode base.fvecs -c cb.safetensors -o codes.npy\n" +
			"  millrace vectors encode query.fvecs -c base -o nearest.npy --neighbours 10 --distances distances.npy",
		Args: session.One("ROWS, a file of vectors"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("neighbours") && req.GetNeighbours() < 1 {
				return failure.Usagef("--neighbours is 0: want 1 to 64")
			}
			if !cmd.Flags().Changed("neighbours") {
				req.Neighbours = nil
			}
			return a.runEncode(cmd.Context(), req, &f, distances, args[0])
		},
	}
	f.add(cmd, "file of the codes, .npy")
	req.Neighbours = new(uint32)
	cmd.Flags().Uint32Var(req.Neighbours, "neighbours", 0, "codes of each row, the nearest codeword first, [1, 64] (unset: 1); flat codebooks only")
	cmd.Flags().StringVar(&distances, "distances", "", "file of the distances, .npy, f4: one for each code, of a product codebook one for each row")
	return cmd
}

func (a *app) runEncode(ctx context.Context, req *pb.EncodeRequest, f *pieceFlags, distances, path string) error {
	if err := f.check(".npy"); err != nil {
		return err
	}
	if distances != "" && !strings.HasSuffix(distances, ".npy") {
		return failure.Usagef("--distances is %q: want a file that ends in .npy", distances)
	}
	rows, err := vectorfile.OpenRows(path)
	if err != nil {
		return failure.Usagef("%w", err)
	}
	defer func() { _ = rows.Close() }() // it was only read
	client, hangUp, err := a.client("")
	if err != nil {
		return err
	}
	defer hangUp()
	ctx, cancel := a.Deadline(ctx, 0)
	defer cancel()
	book, err := a.codebook(ctx, client, f.codebook, f.json)
	if err != nil {
		return err
	}
	if !f.json {
		defer a.printStays(book)
	}
	if got, want := uint32(rows.Dimension()), book.shape.GetDimension(); got != want {
		return failure.Usagef("%s has dimension %d, codebook %s has %d: give rows like those that it was trained on", path, got, f.codebook, want)
	}
	req.Codebook, req.ExpectCodebookDigest, req.ElementType = book.name, &book.digest, key(rowTypes, rows.ElementType())
	if distances != "" {
		req.ReturnDistances = proto.Bool(true)
	}
	e := &encoding{client: client, rows: rows, book: book, request: req}
	if err := e.create(f.out, distances); err != nil {
		return err
	}
	defer e.discard()
	began := time.Now()
	show := tty.NewCounter(a.Err, "rows", int(rows.Rows()))
	defer show.Close()
	each := e.each()
	err = pieces.Do(ctx, (rows.Rows()+each-1)/each, f.inFlight, func(ctx context.Context, i int64) (*pb.EncodeResponse, error) {
		return e.piece(ctx, i*each, min(each, rows.Rows()-i*each))
	}, func(out *pb.EncodeResponse) error {
		show.Set(int(e.done))
		return e.write(out)
	})
	if err != nil {
		return err
	}
	show.Set(int(e.done))
	show.Close()
	if err := e.keep(); err != nil {
		return err
	}
	return a.tell(piecesDone{f.out, rows.Rows(), e.fileBytes(), book.name, book.digest, time.Since(began).Seconds()}, f.json)
}

// npyFile is an array that is being written to a file.
type npyFile struct {
	*wholeFile
	*vectorfile.NpyWriter
	buffer *bufio.Writer
}

func createNpy(path string, e vectorfile.ElementType, shape ...int64) (*npyFile, error) {
	file, err := createWhole(path)
	if err != nil {
		return nil, err
	}
	buffer := bufio.NewWriterSize(file, 1<<20)
	w, err := vectorfile.NewNpyWriter(buffer, e, shape...)
	if err != nil {
		file.discard()
		return nil, err
	}
	return &npyFile{file, w, buffer}, nil
}

// Write appends elements to the array.
func (n *npyFile) Write(p []byte) (int, error) { return n.NpyWriter.Write(p) }

func (n *npyFile) keep() error {
	if err := n.NpyWriter.Close(); err != nil {
		return err
	}
	if err := n.buffer.Flush(); err != nil {
		return err
	}
	return n.wholeFile.keep()
}
