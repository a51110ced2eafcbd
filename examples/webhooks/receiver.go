// Takes webhooks: WEBHOOK_SECRET=whsec_… go run . 9000
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

func main() {
	webhook, err := standardwebhooks.NewWebhook(os.Getenv("WEBHOOK_SECRET"))
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("/", func(response http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		if err := webhook.Verify(body, request.Header); err != nil {
			http.Error(response, err.Error(), http.StatusUnauthorized)
			return
		}
		// A message may come twice: keep the ids that you took.
		fmt.Println("taken", request.Header.Get("webhook-id"), string(body))
		response.WriteHeader(http.StatusNoContent)
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
