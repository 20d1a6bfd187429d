package vectorcli

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference/vq"
	"github.com/millrace/millrace/internal/vectorfile"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/pieces"
	"github.com/millrace/millrace/services/millrace/internal/retry"
	"github.com/millrace/millrace/services/millrace/internal/session"
	"github.com/millrace/millrace/services/millrace/internal/tty"
)

// decode decodes a file of codes.
func (a *app) decode() *cobra.Command {
	var f pieceFlags
	cmd := &cobra.Command{
		Use:   "decode CODES",
		Short: "Decode codes: the codeword of each",
		Long: "Decodes the codes of a file, one codeword a row or, of a product codebook, the bytes that encode wrote, in pieces like\n" +
			"encode. Rows in .npy have the type of the codewords, bf16 as f4; those in .fvecs are f4.",
		Example: "  millrace vectors decode codes.npy -c cb.safetensors -o rows.npy",
		Args:    session.One("CODES, a file of codes"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runDecode(cmd.Context(), &f, args[0])
		},
	}
	f.add(cmd, "file of the rows, .npy or .fvecs")
	return cmd
}

func (a *app) runDecode(ctx context.Context, f *pieceFlags, path string) error {
	if err := f.check(".npy", ".fvecs"); err != nil {
		return err
	}
	codes, err := vectorfile.OpenCodes(path)
	if err != nil {
		return failure.Usagef("%w", err)
	}
	defer func() { _ = codes.Close() }() // it was only read
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
	d := &decoding{client: client, codes: codes.Matrix, book: book, fvecs: strings.HasSuffix(f.out, ".fvecs")}
	if err := fitting(codes.Matrix, path, book); err != nil {
		return err
	}
	if err := d.create(f.out); err != nil {
		return err
	}
	defer d.file.discard()
	began := time.Now()
	show := tty.NewCounter(a.Err, "rows", int(codes.Rows()))
	defer show.Close()
	each := d.each()
	err = pieces.Do(ctx, (codes.Rows()+each-1)/each, f.inFlight, func(ctx context.Context, i int64) ([]byte, error) {
		return d.piece(ctx, i*each, min(each, codes.Rows()-i*each))
	}, func(rows []byte) error {
		_, err := d.out.Write(rows)
		d.done += int64(len(rows) / d.fileBytes())
		show.Set(int(d.done))
		return err
	})
	if err != nil {
		return err
	}
	show.Close()
	if err := d.keep(); err != nil {
		return err
	}
	return a.tell(piecesDone{f.out, codes.Rows(), d.fileBytes(), book.name, book.digest, time.Since(began).Seconds()}, f.json)
}

// fitting returns an error if codes do not fit a codebook.
func fitting(codes *vectorfile.Matrix, path string, book *codebook) error {
	s := book.shape
	if s.GetKind() != pb.CodebookKind_CODEBOOK_KIND_PRODUCT {
		if codes.Dimension() != 1 {
			return failure.Usagef("%s has %d codes a row, codebook %s gives 1: take one column", path, codes.Dimension(), book.name)
		}
		return nil
	}
	if want := packing(s).RowBytes(); codes.Dimension() != want || codes.ElementType() != vectorfile.U8 {
		return failure.Usagef("%s has rows of %d %v, codebook %s gives %d bytes, in which %d codes are packed: give the codes that encode wrote", path,
			codes.Dimension(), codes.ElementType(), book.name, want, s.GetSubspaces())
	}
	return nil
}

// wireCodes reads n rows of codes from row first on, as messages have them: unpacked, a byte each
// up to 256 codewords, else two.
func wireCodes(codes *vectorfile.Matrix, s *pb.CodebookShape, first, n int64) ([]byte, error) {
	raw := make([]byte, n*int64(codes.RowBytes()))
	for have := int64(0); have < n; {
		got, err := codes.ReadRows(raw[have*int64(codes.RowBytes()):], first+have)
		if err != nil {
			return nil, failure.Usagef("read codes from row %d on: %w", first+have, err)
		}
		have += int64(got)
	}
	if s.GetKind() == pb.CodebookKind_CODEBOOK_KIND_PRODUCT {
		p := packing(s)
		out := make([]byte, int(n)*p.CodeBytes())
		if err := p.Unpack(out, raw); err != nil {
			return nil, failure.Usagef("codes from row %d on: %w", first, err)
		}
		return out, nil
	}
	size, wireSize := codes.ElementType().Size(), codeBytes(s)
	if size == wireSize {
		return raw, nil
	}
	out := make([]byte, 0, int(n)*wireSize)
	for i := range n {
		var word [4]byte
		copy(word[:], raw[i*int64(size):][:size])
		code := binary.LittleEndian.Uint32(word[:])
		if code >= s.GetCodewords() {
			return nil, failure.Usagef("row %d has code %d, and there are %d codewords: these codes are of another codebook", first+i, code, s.GetCodewords())
		}
		out = append(out, word[:wireSize]...)
	}
	return out, nil
}

// decoding is a file of codes that becomes a file of rows.
type decoding struct {
	client pb.VectorServiceClient
	codes  *vectorfile.Matrix
	book   *codebook
	fvecs  bool
	file   *wholeFile
	buffer *bufio.Writer
	out    io.WriteCloser
	done   int64 // rows written
}

// element returns the type of the rows in the file.
func (d *decoding) element() vectorfile.ElementType {
	if d.fvecs || d.book.shape.GetCodewordType() == pb.ElementType_ELEMENT_TYPE_BF16 {
		return vectorfile.F32
	}
	return rowTypes[d.book.shape.GetCodewordType()]
}

// fileBytes returns the bytes of a row in the file.
func (d *decoding) fileBytes() int { return int(d.book.shape.GetDimension()) * d.element().Size() }

// create creates the file.
func (d *decoding) create(path string) (err error) {
	if d.fvecs && d.codes.Rows() == 0 {
		return failure.Usagef("-o %s: there are no rows, and a .fvecs file without any has no dimension; write .npy", path)
	}
	if d.file, err = createWhole(path); err != nil {
		return err
	}
	d.buffer = bufio.NewWriterSize(d.file, 1<<20)
	if d.fvecs {
		d.out, err = vectorfile.NewVecsWriter(d.buffer, int(d.book.shape.GetDimension()))
	} else {
		d.out, err = vectorfile.NewNpyWriter(d.buffer, d.element(), d.codes.Rows(), int64(d.book.shape.GetDimension()))
	}
	if err != nil {
		d.file.discard()
	}
	return err
}

func (d *decoding) keep() error {
	if err := d.out.Close(); err != nil {
		return err
	}
	if err := d.buffer.Flush(); err != nil {
		return err
	}
	return d.file.keep()
}

// each returns the rows of a piece: its request and its reply are both below the limit.
func (d *decoding) each() int64 {
	s := d.book.shape
	reply := int(s.GetDimension()) * rowTypes[s.GetCodewordType()].Size()
	return int64(max(1, maxPayload/max(reply, int(s.GetSubspaces())*codeBytes(s))))
}

// piece decodes n rows from row first on to their bytes in the file.
func (d *decoding) piece(ctx context.Context, first, n int64) ([]byte, error) {
	s := d.book.shape
	codes, err := wireCodes(d.codes, s, first, n)
	if err != nil {
		return nil, err
	}
	req := &pb.DecodeRequest{Codebook: d.book.name, ExpectCodebookDigest: &d.book.digest, Codes: codes}
	out, err := retry.Do(ctx, func(ctx context.Context) (*pb.DecodeResponse, error) { return d.client.Decode(ctx, req) })
	if err != nil {
		return nil, failure.OfCall(inPiece(err, first, n), d.book.name, nil)
	}
	want := int(n) * int(s.GetDimension()) * rowTypes[s.GetCodewordType()].Size()
	switch {
	case out.GetCodebookDigest() != d.book.digest:
		return nil, fmt.Errorf("%w: it decoded with the codebook %s and not %s", errReply, out.GetCodebookDigest(), d.book.digest)
	case len(out.GetRows()) != want || out.GetElementType() != s.GetCodewordType():
		return nil, fmt.Errorf("%w: %d codes gave %d bytes of rows of type %v, want %d of %v", errReply, n, len(out.GetRows()),
			out.GetElementType(), want, s.GetCodewordType())
	}
	if d.element() == rowTypes[s.GetCodewordType()] {
		return out.GetRows(), nil
	}
	from := engine.VectorF16
	if s.GetCodewordType() == pb.ElementType_ELEMENT_TYPE_BF16 {
		from = engine.VectorBF16
	}
	return vq.Encode(engine.VectorF32, vq.Decode(from, out.GetRows())), nil // exact
}
