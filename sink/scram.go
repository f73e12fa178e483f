package sink

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"

	"github.com/segmentio/kafka-go/sasl"
)

// scram is SASL SCRAM (RFC 5802, RFC 7677) without channel binding, as Kafka has it. User
// name and password go in as UTF-8, without SASLprep: that is what Kafka hashes when the user is created.
type scram struct {
	name, user, password string
	hash                 func() hash.Hash
	nonce                string
}

// Bounds of the iteration count: Kafka's own minimum, and what takes about a second.
const scramMinIterations, scramMaxIterations = 4096, 1 << 20

func scramMechanism(name, user, password string) sasl.Mechanism {
	s := scram{name: strings.ToUpper(name), user: user, password: password, hash: sha256.New, nonce: rand.Text()}
	if name == "scram-sha-512" {
		s.hash = sha512.New
	}
	return s
}

func (s scram) Name() string { return s.name }

func (s scram) Start(context.Context) (sasl.StateMachine, []byte, error) {
	first := "n=" + strings.NewReplacer("=", "=3D", ",", "=2C").Replace(s.user) + ",r=" + s.nonce
	return &scramSession{scram: s, clientFirst: first}, []byte("n,," + first), nil
}

type scramSession struct {
	scram
	clientFirst string
	signature   []byte // what the server must answer at last; nil before the proof was sent
}

func (s *scramSession) Next(_ context.Context, challenge []byte) (bool, []byte, error) {
	if s.signature == nil {
		proof, err := s.prove(string(challenge))
		return false, proof, err
	}
	v, ok := strings.CutPrefix(firstAttribute(string(challenge)), "v=")
	got, err := base64.StdEncoding.DecodeString(v)
	if !ok || err != nil || subtle.ConstantTimeCompare(got, s.signature) != 1 {
		return false, nil, errors.New("its SCRAM answer does not prove that it knows the password: it may not be the broker it seems to be")
	}
	return true, nil, nil
}

func firstAttribute(message string) string {
	first, _, _ := strings.Cut(message, ",")
	return first
}

// prove answers the server's first message, r=NONCE,s=SALT,i=ITERATIONS.
func (s *scramSession) prove(serverFirst string) ([]byte, error) {
	parts := strings.SplitN(serverFirst, ",", 4)
	malformed := errors.New("its SCRAM challenge is malformed")
	if len(parts) < 3 {
		return nil, malformed
	}
	nonce, okR := strings.CutPrefix(parts[0], "r=")
	salt64, okS := strings.CutPrefix(parts[1], "s=")
	count, okI := strings.CutPrefix(parts[2], "i=")
	salt, errS := base64.StdEncoding.DecodeString(salt64)
	iterations, errI := strconv.Atoi(count)
	switch {
	case !okR || !okS || !okI || errS != nil || errI != nil:
		return nil, malformed
	case !strings.HasPrefix(nonce, s.nonce) || len(nonce) == len(s.nonce):
		return nil, errors.New("its SCRAM challenge does not continue our nonce")
	case iterations < scramMinIterations || iterations > scramMaxIterations:
		return nil, fmt.Errorf("its SCRAM iteration count %d is not between %d and %d", iterations, scramMinIterations, scramMaxIterations)
	}
	salted, err := pbkdf2.Key(s.hash, s.password, salt, iterations, s.hash().Size())
	if err != nil {
		return nil, err
	}
	final := "c=biws,r=" + nonce // biws = base64 of "n,,"
	message := s.clientFirst + "," + serverFirst + "," + final
	clientKey := s.mac(salted, "Client Key")
	stored := s.hash()
	stored.Write(clientKey)
	proof := s.mac(stored.Sum(nil), message)
	subtle.XORBytes(proof, proof, clientKey)
	s.signature = s.mac(s.mac(salted, "Server Key"), message)
	var out bytes.Buffer
	out.WriteString(final + ",p=")
	out.WriteString(base64.StdEncoding.EncodeToString(proof))
	return out.Bytes(), nil
}

func (s *scramSession) mac(key []byte, message string) []byte {
	m := hmac.New(s.hash, key)
	m.Write([]byte(message))
	return m.Sum(nil)
}
