# Takes requests from the pipe `inbox` and answers each into the pipe it names. Argument: every how many it loses.
lose=$1 taken=0 lost=0
mkfifo inbox
trap 'printf "{\"taken\": %d, \"lost\": %d}\n" "$taken" "$lost" >store.json; echo "stopped after $taken"; exit 0' TERM
printf '{"event": "store_ready", "inbox": "%s/inbox"}\n' "$PWD"
while :; do
    # Open for writing too: then the last client's end is not the end of all.
    while read -r answer_to number; do
        taken=$((taken + 1))
        if [ "$lose" -gt 0 ] && [ $((number % lose)) -eq 0 ]; then
            lost=$((lost + 1))
            echo lost >"$answer_to"
        else
            echo ok >"$answer_to"
        fi
    done
done <>inbox
