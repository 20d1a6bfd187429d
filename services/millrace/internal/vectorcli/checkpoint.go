package vectorcli

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/millrace/millrace/internal/safetensors"
)

// checkpointFormat is the metadata's format of a checkpoint's file. It is a safetensors file with
// two tensors: state, U8, is the state that workers accept; energies, F64, has one for each round
// before it. The other metadata describe the training.
const checkpointFormat = "millrace.checkpoint.v1"

// errCheckpoint: a file is not a checkpoint.
var errCheckpoint = errors.New("not a checkpoint of millrace vectors train")

// checkpoint is the state of a training between two rounds, as in a file.
type checkpoint struct {
	iteration int64 // updates before it; not in the file
	state     []byte
	energies  []float64
	training  map[string]string
}

func (c *checkpoint) write(w io.Writer) error {
	var energies bytes.Buffer
	if err := binary.Write(&energies, binary.LittleEndian, c.energies); err != nil {
		return err
	}
	metadata := map[string]string{"format": checkpointFormat}
	for name, text := range c.training {
		metadata["training."+name] = text
	}
	return safetensors.Write(w, metadata, []safetensors.Source{
		{Name: "state", Type: safetensors.U8, Shape: []int64{int64(len(c.state))}, Data: bytes.NewReader(c.state)},
		{Name: "energies", Type: safetensors.F64, Shape: []int64{int64(len(c.energies))}, Data: &energies},
	})
}

// readCheckpoint reads a checkpoint's file. The caller must check the metadata about the training.
func readCheckpoint(path string) (*checkpoint, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("it is no regular file: %w", errCheckpoint)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	s, err := safetensors.Parse(file, info.Size())
	if err != nil {
		return nil, err
	}
	state, one := s.Tensor("state")
	energies, two := s.Tensor("energies")
	switch metadata := s.Metadata(); {
	case metadata["format"] != checkpointFormat:
		return nil, fmt.Errorf("its format is %q, want %q: %w", metadata["format"], checkpointFormat, errCheckpoint)
	case !one || state.Type != safetensors.U8 || len(state.Shape) != 1 || state.Size == 0:
		return nil, fmt.Errorf("it has no bytes of a state: %w", errCheckpoint)
	case !two || energies.Type != safetensors.F64 || len(energies.Shape) != 1:
		return nil, fmt.Errorf("it has no energies: %w", errCheckpoint)
	}
	c := &checkpoint{state: make([]byte, state.Size), energies: make([]float64, energies.Shape[0]), training: map[string]string{}}
	for key, text := range s.Metadata() {
		if name, ok := strings.CutPrefix(key, "training."); ok {
			c.training[name] = text
		}
	}
	if _, err := io.ReadFull(s.Data(state), c.state); err != nil {
		return nil, err
	}
	if err := binary.Read(s.Data(energies), binary.LittleEndian, c.energies); err != nil {
		return nil, err
	}
	return c, nil
}
